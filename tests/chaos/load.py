"""Closed-loop load from a pool of requests; every answer is compared with the right one."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ringline import AsyncClient, Delta, RingError

from tests.chaos import vectors
from tests.chaos.cuts import cut
from tests.chaos.outcome import Defect, Gap, Outcome, Pause, find_defects
from tests.chaos.workload import RequestSpec

STUCK_AFTER = 150.0
"""Seconds after which a request counts as stuck; longer than the processors' patience."""
PATIENCE = 120.0
RETRIES = 200
CANCEL_SHARE, SLOW_SHARE = 0.08, 0.08
SLOW_PAUSE = 0.05
CUT_SHARE = 0.2
"""Of requests whose stream is lost, wherever it is, and then again before an end."""


@dataclass
class Tally:
    """Outcomes of all requests of one phase."""

    requests: int = 0
    cancelled: int = 0
    slow: int = 0
    cut: int = 0
    guessing: int = 0
    """Requests that let engines guess tokens."""
    guessed: int = 0
    """Tokens that engines had guessed right."""
    moved: int = 0
    not_identical: int = 0
    resumed: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    defects: Counter[Defect] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    """The first defects, in words."""
    pauses: list[Pause] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """The longest of each request."""
    all_gaps: list[Gap] = field(default_factory=list)


class Judge(Protocol):
    def __call__(self, spec: RequestSpec, outcome: Outcome, *, cancelled: bool) -> Awaitable[dict[Defect, str]]:
        """The defects of a request."""


def connect(addresses: str) -> AsyncClient:
    """A client that resumes at another processor, and is as patient as processors are."""
    return AsyncClient(addresses, patience=PATIENCE, retries=RETRIES, retry_overloaded=True, wait_for_ready=True)


async def record_answers(
    client: AsyncClient, specs: Sequence[RequestSpec], concurrency: int, *, guessing: bool | None = None
) -> dict[str, Outcome]:
    """Record the right answers while nothing goes wrong, ``concurrency`` requests at a time."""
    free = asyncio.Semaphore(concurrency)

    async def answer(spec: RequestSpec) -> Outcome:
        async with free:
            return await ask(client, spec, guessing=guessing)

    answers = await asyncio.gather(*map(answer, specs))
    for spec, answer in zip(specs, answers, strict=True):
        assert not answer.error, f"{spec.name}: {answer.error}"
    return {spec.name: answer for spec, answer in zip(specs, answers, strict=True)}


class ClosedLoop:
    """Keeps ``concurrency`` requests in flight until ``stop``."""

    def __init__(
        self,
        clients: Sequence[AsyncClient],
        specs: Sequence[RequestSpec],
        answers: Mapping[str, Outcome],
        *,
        seed: int,
        concurrency: int,
        pause: float,
        cut_share: float = 0.0,
        guessing_share: float | None = None,
        tenants: Mapping[str, Sequence[AsyncClient]] | None = None,
        judge: Judge | None = None,
    ) -> None:
        """``pause``: mean seconds between two requests of one of ``concurrency`` workers.

        ``cut_share``: of requests whose client loses its stream, and resumes. ``guessing_share``: of requests that let
        engines guess tokens, which the others forbid; None: no request says anything about that. ``tenants``: clients
        of requests that name a tenant. ``judge``: by default requests must have their right answers.
        """
        self._clients = clients
        self._specs = specs
        self._answers = answers
        self.pause = pause
        self._cut_share = cut_share
        self._guessing_share = guessing_share
        self._tenants = tenants or {}
        self._judge = judge or self._compare
        self._stopping = asyncio.Event()
        self._workers = [asyncio.create_task(self._work(random.Random((seed << 8) + i))) for i in range(concurrency)]
        self.tally = Tally()
        """Of the current phase."""

    def next_phase(self) -> Tally:
        """Start a new tally; returns the old one."""
        done, self.tally = self.tally, Tally()
        return done

    async def stop(self) -> None:
        """Send nothing more, and wait for requests in flight."""
        self._stopping.set()
        await asyncio.gather(*self._workers)

    async def _work(self, random_: random.Random) -> None:
        while not self._stopping.is_set():
            spec = random_.choice(self._specs)
            chance = random_.random()
            cancel_after = random_.randint(0, 30) if chance < CANCEL_SHARE else None
            slow = SLOW_PAUSE if CANCEL_SHARE <= chance < CANCEL_SHARE + SLOW_SHARE else 0.0
            cuts = self._cuts(spec, random_) if chance >= 1 - self._cut_share else ()
            client = random_.choice(self._tenants.get(spec.tenant, self._clients))
            pause = random_.uniform(0, 2 * self.pause)
            guessing = None if self._guessing_share is None else random_.random() < self._guessing_share
            outcome = await ask(client, spec, cancel_after=cancel_after, slow=slow, cuts=cuts, guessing=guessing)
            self.tally.guessing += guessing is True
            cancelled = cancel_after is not None
            found = await self._judge(spec, outcome, cancelled=cancelled)
            self._count(spec, outcome, found, cancelled=cancelled, slow=slow > 0, cut=bool(cuts))
            await asyncio.sleep(pause)

    def _cuts(self, spec: RequestSpec, random_: random.Random) -> tuple[int, ...]:
        """Where to cut a request: anywhere, and before its end."""
        if not (tokens := self._answers[spec.name].num_ids):
            return ()  # vectors come at once
        return random_.randint(1, tokens), tokens

    async def _compare(self, spec: RequestSpec, outcome: Outcome, *, cancelled: bool) -> dict[Defect, str]:
        return find_defects(outcome, self._answers[spec.name], cancelled=cancelled)

    def _count(
        self,
        spec: RequestSpec,
        outcome: Outcome,
        found: Mapping[Defect, str],
        *,
        cancelled: bool,
        slow: bool,
        cut: bool,
    ) -> None:
        tally = self.tally
        tally.requests += 1
        tally.cancelled += cancelled
        tally.slow += slow
        tally.cut += cut
        tally.moved += outcome.moved
        tally.not_identical += outcome.not_identical
        tally.resumed += outcome.resumed
        tally.guessed += outcome.usage.accepted_draft_tokens if outcome.usage is not None else 0
        tally.kinds[spec.name.partition("-")[0]] += 1
        if not slow and not cut:
            tally.pauses += outcome.pauses
            tally.gaps.append(outcome.longest_gap)
            tally.all_gaps += outcome.gaps
        for defect, words in found.items():
            tally.defects[defect] += 1
            if len(tally.details) < 50:
                when = time.strftime("%H:%M:%S", time.gmtime())
                tally.details.append(f"{when} {spec.name}: {defect}: {words}")


async def ask(
    client: AsyncClient,
    spec: RequestSpec,
    *,
    cancel_after: int | None = None,
    slow: float = 0.0,
    cuts: Sequence[int] = (),
    guessing: bool | None = None,
) -> Outcome:
    """Send one request and read to its end, or cancel it after ``cancel_after`` tokens.

    ``slow``: seconds that the client waits after each delta. ``cuts``: numbers of tokens after which it loses its
    stream, in order. ``guessing``: whether engines may guess tokens; None: the request says nothing about that.
    """
    outcome, own = Outcome(), {} if guessing is None else {"speculation": guessing}
    try:
        if spec.texts:
            await vectors.ask(client, spec, outcome, cancel_after)
            return outcome
        async with asyncio.timeout(STUCK_AFTER), client.stream(**spec.arguments(), **own) as stream:
            if cuts:
                cut(stream, cuts)
            async for event in stream.events():
                outcome.add(event)
                outcome.adapter = stream.request.adapter if stream.request is not None else None
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
