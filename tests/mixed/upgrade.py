"""A rolling upgrade under load: a ring of the older release, of which one service after the other becomes newer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from tests.chaos.fleet import Fleet
from tests.chaos.load import ClosedLoop, Tally, ask, connect, record_answers
from tests.chaos.logs import read_logs
from tests.chaos.outcome import Defect, Outcome, find_defects
from tests.chaos.workload import RequestSpec
from tests.mixed.context import LONGEST, Mix, RingResult, RunContext, Step, fleet_of, needs
from tests.mixed.rings import CLIENTS, KILL_TIMEOUT, numerics_of, wait_for_work
from tests.processes import Release

ORDER = ("engine", "detokenizer", "processor")
"""What only newer services offer is offered by a processor whose engine and detokenizer have it: so it comes last."""
NUM_LONGEST = 4
"""``LONGEST`` requests that begin before a service drains."""
LEAD = 0.1
"""Seconds between them and the drain."""
CALM = 3.0
"""Seconds of load before the first service is replaced, and after the last."""
ROUNDS = 2
"""Times as many requests as are in flight end before the next service is replaced."""


async def rolling_upgrade(context: RunContext, mix: Mix, older: Release, newer: Release) -> RingResult:
    """Two of each service: each is drained and started as the newer release, until all are.

    Then the newer ring gets requests of every kind, among them those that the older release refused.
    """
    result = RingResult(mix, f"all of {older.name}, one by one to {newer.name}")
    both = (older, older)
    async with fleet_of(context.directory / "u", both, both, both) as fleet:
        judge = await _Judge.learn(context, fleet)
        async with _load(context, fleet, judge) as load:
            result.steps.append(await _calm(load, "before"))
            for name in (name for kind in ORDER for name in fleet.names[kind]):
                result.steps.append(await _replace(context, fleet, load, judge, name, newer))
            result.steps.append(await _calm(load, "after"))
            await load.stop()
            last = load.next_phase()
        result.steps.append(Step("the last of them", 0.0, last))
        result.steps.append(await _everything(context, fleet))
        result.problems += read_logs(process.log for process in fleet.processes.values()).errors
    _conclude(result, judge)
    return result


async def _calm(load: ClosedLoop, name: str) -> Step:
    await asyncio.sleep(CALM)
    return Step(name, CALM, load.next_phase())


async def _replace(
    context: RunContext, fleet: Fleet, load: ClosedLoop, judge: _Judge, name: str, newer: Release
) -> Step:
    """Drain a service that has work, start it as the newer release, and let requests reach it.

    Some requests begin just before, and are so long that they must move.
    """
    process, start = fleet.processes[name], time.monotonic()
    async with asyncio.timeout(KILL_TIMEOUT), connect(fleet.fronts) as client:
        longest = [asyncio.create_task(ask(client, LONGEST)) for _ in range(NUM_LONGEST)]
        await asyncio.sleep(LEAD)
        await wait_for_work(fleet, name)
        drain = time.monotonic()
        code = await process.drain()
        drained, process.release = time.monotonic() - drain, newer
        process.start()
        await process.wait_serving()
        enough = load.tally.requests + ROUNDS * context.options.concurrency
        while load.tally.requests < enough:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        outcomes = await asyncio.gather(*longest)
    tally = load.next_phase()
    for outcome in outcomes:
        _count(tally, LONGEST, outcome, await judge(LONGEST, outcome, cancelled=False))
    if code != 0:
        tally.details.append(f"{name} of the older release ended with {code}")
    return Step(name, time.monotonic() - start, tally, drained)


def _count(tally: Tally, spec: RequestSpec, outcome: Outcome, found: Mapping[Defect, str]) -> None:
    tally.requests += 1
    tally.moved += outcome.moved
    tally.resumed += outcome.resumed
    tally.gaps.append(outcome.longest_gap)
    tally.defects.update(found)
    tally.details += [f"{spec.name}: {defect}: {words}" for defect, words in found.items()]


async def _everything(context: RunContext, fleet: Fleet) -> Step:
    """Ask the upgraded ring all there is, each with its right answer of the newer release."""
    start, tally, client = time.monotonic(), Tally(), connect(fleet.fronts)
    free = asyncio.Semaphore(context.options.concurrency)

    async def compare(spec: RequestSpec) -> None:
        async with free:
            outcome = await ask(client, spec)
        _count(tally, spec, outcome, find_defects(outcome, context.answers[spec.name], cancelled=False))

    async with client:
        await asyncio.gather(*map(compare, context.specs))
    return Step("every kind", time.monotonic() - start, tally)


def _conclude(result: RingResult, judge: _Judge) -> None:
    """Sum the steps up."""
    for step in result.steps:
        result.requests += step.tally.requests
        result.problems += step.tally.details
    for kind in ("engine", "processor"):  # clients are not told that a detokenizer was left
        tallies = [step.tally for step in result.steps if step.name.startswith(kind)]
        count = sum(tally.moved if kind == "engine" else tally.resumed for tally in tallies)
        result.moved[f"{kind}s that drained"] = count
        if not count:
            result.problems.append(f"no request moved from {kind}s that drained")
    result.notes.append(f"The model's digests are {'equal' if len(judge.models) == 1 else 'different'}")
    if judge.releases_differ:
        result.notes.append(
            f"The numerics differ: {judge.of_both} answers were computed by engines of both, {judge.of_both_equal} of "
            "them equal to what one alone computes"
        )


class _Judge:
    """Compares answers with those of the release, or the releases, whose engines computed them."""

    def __init__(self, answers: Mapping[str, Mapping[str, Outcome]]) -> None:
        """``answers``: the right ones, by the numerics of engines and the name of the request."""
        self._answers = answers
        self.of_both = self.of_both_equal = 0
        self.models: set[str] = set()
        """The digests that engines gave."""

    @classmethod
    async def learn(cls, context: RunContext, fleet: Fleet) -> _Judge:
        """Record the answers of a ring in which nothing has changed."""
        async with connect(fleet.fronts) as client:
            (model,) = await client.models()
            specs = [spec for spec in context.specs if model.capabilities.issuperset(needs(spec))]
            answers = await record_answers(client, [*specs, LONGEST], context.options.concurrency)
        numerics = await numerics_of(fleet, "engine-0")
        return cls({context.numerics: context.answers, numerics: answers})

    @property
    def releases_differ(self) -> bool:
        """Whether their engines have other numerics."""
        return len(self._answers) > 1

    def specs(self, context: RunContext) -> list[RequestSpec]:
        """Those that both releases answer."""
        return [spec for spec in context.specs if all(spec.name in answers for answers in self._answers.values())]

    async def __call__(self, spec: RequestSpec, outcome: Outcome, *, cancelled: bool) -> dict[Defect, str]:
        """An answer that engines of both numerics computed may differ from both: it must be whole all the same."""
        self.models.update(outcome.models)
        right = [self._answers[one][spec.name] for one in outcome.numerics or self._answers if one in self._answers]
        found = [find_defects(outcome, one, cancelled=cancelled) for one in right]
        best = min(found, key=len)
        if len(outcome.numerics) > 1:
            self.of_both += 1
            self.of_both_equal += not best
            best.pop(Defect.ALTERED, None)
            usage = outcome.usage
            if usage is not None and not cancelled and usage.completion_tokens == outcome.num_ids:
                best.pop(Defect.WRONG_USAGE, None)
        return best


@asynccontextmanager
async def _load(context: RunContext, fleet: Fleet, judge: _Judge) -> AsyncIterator[ClosedLoop]:
    options = context.options
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(fleet.fronts)) for _ in range(CLIENTS)]
        load = ClosedLoop(
            clients,
            judge.specs(context),
            context.answers,
            seed=options.seed,
            concurrency=options.concurrency,
            pause=0.0,
            judge=judge,
        )
        try:
            yield load
        finally:
            await load.stop()
