"""The load of well-behaved clients: an open loop of requests, each with one right answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringline import AsyncClient

from tests.chaos.load import ask
from tests.chaos.outcome import Defect, Outcome, find_defects
from tests.chaos.workload import RequestSpec

MOST_OPEN = 200
"""Requests in flight. Beyond that none are sent, and each counts as stuck: the services do not keep up."""
_MAX_DETAILS = 20


@dataclass
class LoadResult:
    """Outcomes of the requests that were sent in one phase."""

    requests: int = 0
    first_tokens: list[float] = field(default_factory=list)
    """Seconds."""
    latencies: list[float] = field(default_factory=list)
    """Seconds to the end of each right answer."""
    defects: Counter[Defect] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)


class OpenLoop:
    """An open loop that can be started and stopped for each phase."""

    def __init__(
        self,
        client: AsyncClient,
        specs: Sequence[RequestSpec],
        answers: Mapping[str, Outcome],
        *,
        rate: float,
        seed: int,
    ) -> None:
        """``rate``: mean requests per second, as a Poisson process."""
        self._client = client
        self._specs = specs
        self._answers = answers
        self._rate = rate
        self._random = random.Random(seed)
        self._open: set[asyncio.Task[None]] = set()
        self._result = LoadResult()
        self._task: asyncio.Task[None] | None = None

    def start_phase(self) -> None:
        self._result = LoadResult()
        self._task = asyncio.create_task(self._run(self._result))

    async def end_phase(self) -> LoadResult:
        """Stop sending, wait for requests in flight, and return the phase's results."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._open)
        return self._result

    async def _run(self, result: LoadResult) -> None:
        due = time.monotonic()
        while True:
            due += self._random.expovariate(self._rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            result.requests += 1
            spec = self._random.choice(self._specs)
            if len(self._open) >= MOST_OPEN:
                self._add_defect(result, spec, Defect.STUCK, f"{MOST_OPEN} others were in flight")
                continue
            task = asyncio.create_task(self._ask(result, spec))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _ask(self, result: LoadResult, spec: RequestSpec) -> None:
        outcome = await ask(self._client, spec)
        found = find_defects(outcome, self._answers[spec.name], cancelled=False)
        for defect, words in found.items():
            self._add_defect(result, spec, defect, words)
        if not found:
            result.latencies.append(time.monotonic() - outcome.began)
            result.first_tokens.append(outcome.first_token or 0.0)

    def _add_defect(self, result: LoadResult, spec: RequestSpec, defect: Defect, words: str) -> None:
        result.defects[defect] += 1
        if len(result.details) < _MAX_DETAILS:
            result.details.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {spec.name}: {defect}: {words}")
