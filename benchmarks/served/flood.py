"""Requests at a rate that heeds no answer, on few Sessions: what a crowd of clients does, at the cost of one.

The generator shares the machine with what it measures, so it does little per message: requests are written in bursts,
and of answers only first tokens and ends are looked at. Times are from a request's write to its answer's arrival, as
this process sees them.
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
from services.bench.measure import Spread

TENANT_HEADER = "x-ringline-tenant"
_SESSION = "/ringline.inference.v1.InferenceService/Session"
_BURST_SECONDS = 0.01
_PROMPTS = 64
_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


@dataclass(frozen=True, slots=True)
class Shape:
    """What each request asks for."""

    prompt: int
    output: int
    """On average; between half of that and one and a half of it, for equal ones would all end and begin in step."""
    timeout: float | None
    """Seconds."""


@dataclass(slots=True)
class Tally:
    """What became of the requests that ended in a span of time; times in seconds."""

    begun: float = field(default_factory=time.perf_counter)
    good: int = 0
    good_tokens: int = 0
    refused: int = 0
    others: Counter[str] = field(default_factory=Counter)
    refusal: array[float] = field(default_factory=lambda: array("d"))
    """From a request's write to its refusal."""
    ttft: array[float] = field(default_factory=lambda: array("d"))
    """Of the requests that were also written in this span."""
    tpot: array[float] = field(default_factory=lambda: array("d"))
    """Per output token after the first, of each request that ended well."""
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Count what ended in another span, too."""
        self.good += other.good
        self.good_tokens += other.good_tokens
        self.refused += other.refused
        self.others += other.others
        self.refusal += other.refusal
        self.ttft += other.ttft
        self.tpot += other.tpot
        self.seconds += other.seconds

    @property
    def goodput(self) -> float:
        """Tokens per second of answers that were complete."""
        return self.good_tokens / self.seconds


def part(seconds: array[float], part: str) -> float | None:
    """One figure of a spread, such as p99, in milliseconds; None where there is nothing."""
    spread = Spread.of(seconds)
    return None if spread is None else float(getattr(spread, part))


def together(tallies: Iterable[Tally]) -> Tally:
    """Of several spans."""
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole


class Flood:
    """One tenant's Session. An async context manager."""

    def __init__(self, address: str, shape: Shape, tenant: str = "", *, reads: bool = True) -> None:
        self._address = address
        self._shape = shape
        self._reads = reads
        self._metadata = [(TENANT_HEADER, tenant)] if tenant else []
        self._prompts = [text_of(random.choices(range(1000), k=shape.prompt - 4)) for _ in range(_PROMPTS)]
        self._number = 0
        self._sent: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._ends: dict[str, pb.ChoiceFinished] = {}
        self._refill = False
        self._due = asyncio.Event()
        self._owed = 0
        """Requests to write in place of those that ended."""
        self._stream: Stream
        self.tally = Tally()

    async def __aenter__(self) -> Flood:
        self._stream = await open_stream(self._address, _SESSION, self._metadata, self._take if self._reads else None)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.close()

    def fresh_tally(self) -> Tally:
        """Begin to count anew; returns what was counted so far."""
        old, self.tally = self.tally, Tally()
        old.seconds = self.tally.begun - old.begun
        return old

    async def keep(self, count: int) -> None:
        """Keep so many under way, until cancelled. Raises ``ConnectionError`` if the stream ends."""
        self._refill, self._owed = True, count - len(self._sent)
        try:
            while True:
                self._due.clear()
                owed, self._owed = self._owed, 0
                await self._ask(owed)
                await self._due.wait()
        finally:
            self._refill = False

    async def offer(self, rate: float) -> None:
        """Begin ``rate`` requests a second at random times (a Poisson process), until cancelled.

        Raises ``ConnectionError`` if the stream ends.
        """
        due = time.perf_counter()
        while True:
            count = 0
            while due <= time.perf_counter():
                due += random.expovariate(rate)
                count += 1
            await self._ask(count)
            await asyncio.sleep(max(due - time.perf_counter(), _BURST_SECONDS))

    async def _ask(self, count: int) -> None:
        await self._stream.room()
        now, messages = time.perf_counter(), []
        for _ in range(count):
            self._number += 1
            name = str(self._number)
            self._sent[name] = now
            messages.append(pb.SessionRequest(generate=self.request(name)).SerializeToString())
        self._stream.write(messages)

    def request(self, name: str) -> pb.GenerateRequest:
        """Greedy, with a prompt that no cache has."""
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
            if sent >= tally.begun:  # those before met with what there was then
                tally.ttft.append(first - sent)
            tally.tpot.append((now - first) / max(1, tokens - 1))
        else:
            tally.others[end.error.message or output_pb2.FinishReason.Name(end.finish_reason)] += 1
        self._replace()

    def _refused(self, name: str, status: status_pb2.Status, now: float) -> None:
        sent = self._sent.pop(name, None)
        if sent is None:
            return
        if status.code == _EXHAUSTED:
            self.tally.refused += 1
            self.tally.refusal.append(now - sent)
        else:
            self.tally.others[status.message] += 1
        self._replace()

    def _replace(self) -> None:
        if self._refill:
            self._owed += 1
            self._due.set()


@contextlib.asynccontextmanager
async def background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines while the body runs; what one of them raises is raised at the end."""
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


async def come_and_go(address: str, shape: Shape, tenant: str, rate: float, seconds: float) -> None:
    """Offer requests for so long, drop all that is under way, be silent for as long, and begin again, for ever."""
    while True:
        async with Flood(address, shape, tenant) as flood:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await flood.offer(rate)
        await asyncio.sleep(seconds)


async def never_read(address: str, shape: Shape, rate: float, life: float) -> None:
    """Offer requests on a Session whose answers are never read, and begin another after ``life`` seconds, for ever."""
    while True:
        async with Flood(address, shape, reads=False) as deaf:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(life):
                    await deaf.offer(rate)
