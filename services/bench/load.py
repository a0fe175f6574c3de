"""When requests begin: a number of them always under way, or at a rate, however many that makes."""

from __future__ import annotations

import asyncio
import random
import time

from services.bench.link import Link
from services.bench.measure import Measurement


class Load:
    """Begins the requests that a link has prepared, and takes their times."""

    def __init__(self, link: Link, requests: int, output_len: int) -> None:
        """Each of the ``requests`` must bring exactly ``output_len`` tokens."""
        self.measurement = Measurement(output_len)
        self._link = link
        self._requests = requests
        self._begun = 0
        self._refill = False
        self._done = asyncio.Event()
        link.listener = self

    async def keep(self, concurrency: int) -> None:
        """Keep this many requests under way until all have ended. Raises LoadError when the link ends first."""
        self._refill = True
        for _ in range(concurrency):
            self._begin()
        await self._link.wait_for(self._done.wait())

    async def arrive(self, rate: float, rng: random.Random) -> None:
        """Begin requests at this mean rate per second (a Poisson process); else as ``keep``."""
        await self._link.wait_for(self._arrivals(rate, rng))
        await self._link.wait_for(self._done.wait())

    def delivered(self, number: int, position: int, count: int, now: float) -> None:
        """Tokens of a request came."""
        self.measurement.deliver(number, position, count, now)

    def ended(self, number: int, now: float, problem: str | None) -> None:
        """A request ended."""
        if not self.measurement.end(number, now, problem):
            return
        if self._refill:
            self._begin()
        if self.measurement.ended == self._requests:
            self._done.set()

    async def _arrivals(self, rate: float, rng: random.Random) -> None:
        due = time.perf_counter()
        while self._begun < self._requests:
            self._begin()
            due += rng.expovariate(rate)
            await asyncio.sleep(due - time.perf_counter())

    def _begin(self) -> None:
        if self._begun < self._requests:
            self.measurement.begin(self._begun, time.perf_counter())
            self._link.begin(self._begun)
            self._begun += 1
