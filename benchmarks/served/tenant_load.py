"""Open-loop or closed-loop load of one tenant: the requests of many clients, over one Session.

The load generator shares the machine with the server, so it does little per message: it writes requests in bursts, and
reads only the first token and the end of each answer. Times are from the write of a request to the arrival of its
answer, as this process sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import status_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2

from benchmarks.served.stream import Stream, open_stream
from benchmarks.work import text_of
from services.cli.bench.measurement import LatencySummary

TENANT_HEADER = "x-ringline-tenant"
_SESSION = "/ringline.inference.v1.InferenceService/Session"
_BURST_SECONDS = 0.01
_PROMPTS = 64
_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Prompt and output length, and timeout, of each request."""

    prompt: int
    output: int
    """Average output tokens; each request has 0.5 to 1.5 times that, because equal lengths would all end together."""
    timeout: float | None
    """Seconds; None: no timeout."""


@dataclass(slots=True)
class Tally:
    """Outcomes of the requests that ended in a span of time; times in seconds."""

    started_at: float = field(default_factory=time.perf_counter)
    good: int = 0
    good_tokens: int = 0
    refused: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    refusal: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from the write of a request to its refusal."""
    ttft: array[float] = field(default_factory=lambda: array("d"))
    """Time to first token of the requests that were also written in this span."""
    tpot: array[float] = field(default_factory=lambda: array("d"))
    """Time per output token after the first, of each successful request."""
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        self.good += other.good
        self.good_tokens += other.good_tokens
        self.refused += other.refused
        self.failures += other.failures
        self.refusal += other.refusal
        self.ttft += other.ttft
        self.tpot += other.tpot
        self.seconds += other.seconds

    @property
    def goodput(self) -> float:
        """Output tokens per second, of completed requests only."""
        return self.good_tokens / self.seconds


def figure_ms(seconds: array[float], figure: str) -> float | None:
    """Milliseconds of one ``figure`` of ``LatencySummary``, such as p99; None for no values."""
    summary = LatencySummary.of(seconds)
    return None if summary is None else float(getattr(summary, figure))


def merged(tallies: Iterable[Tally]) -> Tally:
    """Add up the outcomes of several spans."""
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole


class TenantLoad:
    """Sends one tenant's requests over one Session. An async context manager."""

    def __init__(self, address: str, shape: RequestShape, tenant: str = "", *, reads: bool = True) -> None:
        self._address = address
        self._shape = shape
        self._reads = reads
        self._metadata = [(TENANT_HEADER, tenant)] if tenant else []
        self._prompts = [text_of(random.choices(range(1000), k=shape.prompt - 4)) for _ in range(_PROMPTS)]
        self._number = 0
        self._sent: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._ends: dict[str, pb.ChoiceFinished] = {}
        self._closed_loop = False
        self._due = asyncio.Event()
        self._owed = 0
        """Number of requests to send in place of those that ended."""
        self._stream: Stream
        self.tally = Tally()

    async def __aenter__(self) -> TenantLoad:
        self._stream = await open_stream(self._address, _SESSION, self._metadata, self._take if self._reads else None)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.close()

    def fresh_tally(self) -> Tally:
        """Return the tally so far, and start a new one."""
        old, self.tally = self.tally, Tally()
        old.seconds = self.tally.started_at - old.started_at
        return old

    async def run_closed_loop(self, concurrency: int) -> None:
        """Keep ``concurrency`` requests in flight until cancelled. Raises ``ConnectionError`` if the stream ends."""
        self._closed_loop, self._owed = True, concurrency - len(self._sent)
        try:
            while True:
                self._due.clear()
                owed, self._owed = self._owed, 0
                await self._send(owed)
                await self._due.wait()
        finally:
            self._closed_loop = False

    async def run_open_loop(self, rate: float) -> None:
        """Send ``rate`` requests a second on average, as a Poisson process, until cancelled.

        Raises ``ConnectionError`` if the stream ends.
        """
        due = time.perf_counter()
        while True:
            count = 0
            while due <= time.perf_counter():
                due += random.expovariate(rate)
                count += 1
            await self._send(count)
            await asyncio.sleep(max(due - time.perf_counter(), _BURST_SECONDS))

    async def _send(self, count: int) -> None:
        await self._stream.room()
        now, messages = time.perf_counter(), []
        for _ in range(count):
            self._number += 1
            name = str(self._number)
            self._sent[name] = now
            messages.append(pb.SessionRequest(generate=self.request(name)).SerializeToString())
        self._stream.write(messages)

    def request(self, name: str) -> pb.GenerateRequest:
        """Build a greedy request with a prompt that is in no prefix cache."""
        shape = self._shape
        prompt = f"{name} {self._prompts[self._number % _PROMPTS]}"
        request = pb.GenerateRequest(request_id=name, text=prompt)
        request.sampling.temperature = 0.0
        request.stopping.max_tokens = random.randint((shape.output + 1) // 2, shape.output * 3 // 2)
        request.stopping.ignore_eos = True
        if shape.timeout is not None:
            request.timeout_ms = round(1000 * shape.timeout)
        return request

    def _take(self, message: bytes) -> None:
        now = time.perf_counter()
        for response in pb.SessionResponse.FromString(message).responses:
            if response.HasField("request_finished"):
                self._finished(response.request_id, response.request_finished.usage.completion_tokens, now)
            elif response.HasField("refused"):
                self._refused(response.request_id, response.refused.status, now)
            elif response.HasField("choice_finished"):
                self._ends[response.request_id] = response.choice_finished
            elif response.HasField("delta"):
                self._first.setdefault(response.request_id, now)

    def _finished(self, name: str, tokens: int, now: float) -> None:
        end = self._ends.pop(name)
        sent, first = self._sent.pop(name, None), self._first.pop(name, now)
        if sent is None:
            return
        tally = self.tally
        if end.finish_reason == output_pb2.FINISH_REASON_LENGTH:
            tally.good += 1
            tally.good_tokens += tokens
            if sent >= tally.started_at:  # the others were sent under the load before this span
                tally.ttft.append(first - sent)
            tally.tpot.append((now - first) / max(1, tokens - 1))
        else:
            tally.failures[end.error.message or output_pb2.FinishReason.Name(end.finish_reason)] += 1
        self._send_another()

    def _refused(self, name: str, status: status_pb2.Status, now: float) -> None:
        sent = self._sent.pop(name, None)
        if sent is None:
            return
        if status.code == _EXHAUSTED:
            self.tally.refused += 1
            self.tally.refusal.append(now - sent)
        else:
            self.tally.failures[status.message] += 1
        self._send_another()

    def _send_another(self) -> None:
        if self._closed_loop:
            self._owed += 1
            self._due.set()


@contextlib.asynccontextmanager
async def background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines while the body runs; an error of one of them is raised when it ends."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failed and failed[0] is not None:
        raise failed[0]


async def send_in_bursts(
    address: str, shape: RequestShape, tenant: str, rate: float, seconds: float, tally: Tally
) -> None:
    """Alternate forever: an open loop for ``seconds``, whose requests are then dropped, and ``seconds`` of silence.

    The outcomes, without the silence, are added to ``tally``.
    """
    while True:
        async with TenantLoad(address, shape, tenant) as load:
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await load.run_open_loop(rate)
            finally:
                tally.add(load.fresh_tally())
        await asyncio.sleep(seconds)


async def send_without_reading(address: str, shape: RequestShape, rate: float, life: float) -> None:
    """Send an open loop on a Session whose answers are never read; replace the Session every ``life`` seconds."""
    while True:
        async with TenantLoad(address, shape, reads=False) as load:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(life):
                    await load.run_open_loop(rate)
