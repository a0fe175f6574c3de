"""Clients that ask the ring for what is in the pool, all the time, and compare what they get with the right answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ringline import AsyncClient, Delta, RingError

from tests.chaos.outcome import Fault, Gap, Outcome, Pause, faults_of
from tests.chaos.workload import Spec

STUCK_AFTER = 150.0
"""Seconds in which a request has to end: longer than the processors are patient."""
PATIENCE = 120.0
RETRIES = 200
CANCEL_SHARE, SLOW_SHARE = 0.08, 0.08
SLOW_PAUSE = 0.05


@dataclass
class Tally:
    """What came of all requests of one phase."""

    requests: int = 0
    cancelled: int = 0
    slow: int = 0
    moved: int = 0
    not_identical: int = 0
    resumed: int = 0
    sorts: Counter[str] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    """The first few faults in words."""
    pauses: list[Pause] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """The longest one of each request."""
    all_gaps: list[Gap] = field(default_factory=list)


def connect(addresses: str) -> AsyncClient:
    """A client that goes on elsewhere when its processor is lost, and is as patient as the processors are."""
    return AsyncClient(addresses, patience=PATIENCE, retries=RETRIES, retry_overloaded=True)


async def undisturbed(client: AsyncClient, specs: Sequence[Spec], concurrency: int) -> dict[str, Outcome]:
    """The right answer to each request of the pool, asked while nothing goes wrong, so many at a time."""
    free = asyncio.Semaphore(concurrency)

    async def answer(spec: Spec) -> Outcome:
        async with free:
            return await ask(client, spec)

    answers = await asyncio.gather(*map(answer, specs))
    for spec, answer in zip(specs, answers, strict=True):
        assert not answer.error, f"{spec.name}: {answer.error}"
    return {spec.name: answer for spec, answer in zip(specs, answers, strict=True)}


class Load:
    """So many requests at a time, until told to stop."""

    def __init__(
        self,
        clients: Sequence[AsyncClient],
        specs: Sequence[Spec],
        answers: Mapping[str, Outcome],
        *,
        seed: int,
        concurrency: int,
        pause: float,
    ) -> None:
        """``pause``: seconds, on average, between two requests of one of ``concurrency`` workers."""
        self._clients = clients
        self._specs = specs
        self._answers = answers
        self.pause = pause
        self._stopping = asyncio.Event()
        self._workers = [asyncio.create_task(self._work(random.Random((seed << 8) + i))) for i in range(concurrency)]
        self.tally = Tally()
        """Of the present phase."""

    def next_phase(self) -> Tally:
        """Count anew; returns what was counted so far."""
        done, self.tally = self.tally, Tally()
        return done

    async def stop(self) -> None:
        """Ask for nothing more, and wait for what is under way."""
        self._stopping.set()
        await asyncio.gather(*self._workers)

    async def _work(self, random_: random.Random) -> None:
        while not self._stopping.is_set():
            spec = random_.choice(self._specs)
            chance = random_.random()
            cancel_after = random_.randint(0, 30) if chance < CANCEL_SHARE else None
            slow = SLOW_PAUSE if CANCEL_SHARE <= chance < CANCEL_SHARE + SLOW_SHARE else 0.0
            client = random_.choice(self._clients)
            pause = random_.uniform(0, 2 * self.pause)
            outcome = await ask(client, spec, cancel_after=cancel_after, slow=slow)
            self._count(spec, outcome, cancelled=cancel_after is not None, slow=slow > 0)
            await asyncio.sleep(pause)

    def _count(self, spec: Spec, outcome: Outcome, *, cancelled: bool, slow: bool) -> None:
        tally = self.tally
        tally.requests += 1
        tally.cancelled += cancelled
        tally.slow += slow
        tally.moved += outcome.moved
        tally.not_identical += outcome.not_identical
        tally.resumed += outcome.resumed
        tally.sorts[spec.name.partition("-")[0]] += 1
        if not slow:
            tally.pauses += outcome.pauses
            tally.gaps.append(outcome.longest_gap)
            tally.all_gaps += outcome.gaps
        for fault, words in faults_of(outcome, self._answers[spec.name], cancelled=cancelled).items():
            tally.faults[fault] += 1
            if len(tally.details) < 50:
                when = time.strftime("%H:%M:%S", time.gmtime())
                tally.details.append(f"{when} {spec.name}: {fault}: {words}")


async def ask(client: AsyncClient, spec: Spec, *, cancel_after: int | None = None, slow: float = 0.0) -> Outcome:
    """One request, read to its end, or cancelled after so many tokens."""
    outcome = Outcome()
    try:
        async with asyncio.timeout(STUCK_AFTER), client.stream(**spec.arguments()) as stream:
            async for event in stream.events():
                outcome.take(event)
                if cancel_after is not None and outcome.num_ids >= cancel_after:
                    return outcome
                if slow and isinstance(event, Delta):
                    await asyncio.sleep(slow)
            outcome.usage = (await stream.result()).usage
    except TimeoutError as error:
        outcome.stuck = not isinstance(error, RingError)
        outcome.error = str(error) if isinstance(error, RingError) else ""
    except RingError as error:
        outcome.error, outcome.reason = f"{type(error).__name__}: {error}", error.reason
        outcome.failed = time.monotonic()
    return outcome
