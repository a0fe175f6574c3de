"""The clients that behave: an open loop of requests, each of which has one right answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringline import AsyncClient

from tests.chaos.load import ask
from tests.chaos.outcome import Fault, Outcome, faults_of
from tests.chaos.workload import Spec

MOST_OPEN = 200
"""Requests at a time. More are not sent, and count as lost: the services do not keep up."""
_WORDS = 20


@dataclass
class Told:
    """What came of the requests that began in one phase."""

    requests: int = 0
    first_tokens: list[float] = field(default_factory=list)
    """Seconds."""
    latencies: list[float] = field(default_factory=list)
    """Seconds to the end of each request that is right."""
    faults: Counter[Fault] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)


class OpenLoad:
    """Requests at a rate, until told to pause."""

    def __init__(
        self, client: AsyncClient, specs: Sequence[Spec], answers: Mapping[str, Outcome], *, rate: float, seed: int
    ) -> None:
        """``rate``: requests a second, on average, at random times."""
        self._client = client
        self._specs = specs
        self._answers = answers
        self._rate = rate
        self._random = random.Random(seed)
        self._open: set[asyncio.Task[None]] = set()
        self._told = Told()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin a phase."""
        self._told = Told()
        self._task = asyncio.create_task(self._run(self._told))

    async def end(self) -> Told:
        """Ask for nothing more, wait for what is under way, and return what came of the phase."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._open)
        return self._told

    async def _run(self, told: Told) -> None:
        due = time.monotonic()
        while True:
            due += self._random.expovariate(self._rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            told.requests += 1
            spec = self._random.choice(self._specs)
            if len(self._open) >= MOST_OPEN:
                self._fault(told, spec, Fault.STUCK, f"{MOST_OPEN} others were under way")
                continue
            task = asyncio.create_task(self._ask(told, spec))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _ask(self, told: Told, spec: Spec) -> None:
        outcome = await ask(self._client, spec)
        found = faults_of(outcome, self._answers[spec.name], cancelled=False)
        for fault, words in found.items():
            self._fault(told, spec, fault, words)
        if not found:
            told.latencies.append(time.monotonic() - outcome.began)
            told.first_tokens.append(outcome.first_token or 0.0)

    def _fault(self, told: Told, spec: Spec, fault: Fault, words: str) -> None:
        told.faults[fault] += 1
        if len(told.details) < _WORDS:
            told.details.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {spec.name}: {fault}: {words}")
