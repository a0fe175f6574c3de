"""The load generator: decides when requests are sent.

Closed loop: a fixed number of requests is in flight; when one ends, the next is sent. Open loop: requests arrive at a
mean rate, whatever the server does, so the number in flight grows if the server is too slow.
"""

from __future__ import annotations

import asyncio
import random
import time

from services.cli.bench.load_stream import LoadStream
from services.cli.bench.measurement import Measurement


class LoadGenerator:
    """Sends the requests prepared by a load stream, and records their times."""

    def __init__(self, stream: LoadStream, requests: int, output_len: int) -> None:
        """Each of the ``requests`` must produce exactly ``output_len`` tokens."""
        self.measurement = Measurement(output_len)
        self._stream = stream
        self._requests = requests
        self._sent = 0
        self._closed_loop = False
        self._all_ended = asyncio.Event()
        stream.listener = self

    async def run_closed_loop(self, concurrency: int) -> None:
        """Keep ``concurrency`` requests in flight until all have ended. Raises LoadError if the stream ends first."""
        self._closed_loop = True
        for _ in range(concurrency):
            self._send_next()
        await self._stream.wait_for(self._all_ended.wait())

    async def run_open_loop(self, rate: float, rng: random.Random) -> None:
        """Send ``rate`` requests per second on average, as a Poisson process; otherwise like ``run_closed_loop``."""
        await self._stream.wait_for(self._send_arrivals(rate, rng))
        await self._stream.wait_for(self._all_ended.wait())

    def on_tokens(self, number: int, position: int, count: int, now: float) -> None:
        self.measurement.record_tokens(number, position, count, now)

    def on_finished(self, number: int, now: float, problem: str | None) -> None:
        if not self.measurement.record_end(number, now, problem):
            return
        if self._closed_loop:
            self._send_next()
        if self.measurement.ended == self._requests:
            self._all_ended.set()

    async def _send_arrivals(self, rate: float, rng: random.Random) -> None:
        due = time.perf_counter()
        while self._sent < self._requests:
            self._send_next()
            due += rng.expovariate(rate)
            await asyncio.sleep(due - time.perf_counter())

    def _send_next(self) -> None:
        if self._sent < self._requests:
            self.measurement.record_sent(self._sent, time.perf_counter())
            self._stream.send(self._sent)
            self._sent += 1
