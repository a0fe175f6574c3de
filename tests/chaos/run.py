"""A whole run: record the right answers, inject faults under load, then replace every process."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.chaos import budgets, pictures, ranks, speculation, vectors
from tests.chaos.adapters import kind as adapters
from tests.chaos.adapters.names import OPERATOR
from tests.chaos.faults import Injector, schedule
from tests.chaos.fleet import Fleet
from tests.chaos.load import CUT_SHARE, PATIENCE, ClosedLoop, connect, record_answers
from tests.chaos.logs import read_logs
from tests.chaos.models import make
from tests.chaos.outcome import Outcome
from tests.chaos.pauses import measure, prefill_cost
from tests.chaos.report import Phase, Report, quantile
from tests.chaos.workload import pool
from tests.processes import HeldResources, alive

CLIENTS = 3
"""Each has one Session with one processor at a time."""
NOTICED = 3.0
"""A request noticed a fault if its gap is this many times the median longest gap without faults."""
SETTLE_TIMEOUT = 60.0
"""Seconds in which services free what has ended; longer than the orphan grace."""


@dataclass(frozen=True)
class Options:
    seed: int
    seconds: float
    """Of chaos; all else takes about a minute more."""
    rolling: int = 1
    """How often every process is drained and replaced, one after the other."""
    concurrency: int = 12
    pause: float = 0.2
    """Mean seconds between two requests of one of ``concurrency`` workers."""
    rolling_pause: float = 0.2
    """``pause`` while processes are replaced."""
    pauses: int = 0
    """How often each kind of fault is injected alone into each service, to measure its pause."""
    per_kind: int = 4
    """Requests of each kind in the pool."""
    engines: int = 3
    ranks: bool = False
    """Whether the first engine has two tensor-parallel ranks and the second one two stages; ranks fail, too."""
    divided: bool = False
    """Whether engines divide the machine, as those of `ringline serve --data-parallel-size` do."""
    kind: str | None = None
    """Of the model: one of ``models.KINDS``, or ``pictures.KIND``; None: the bundled one.

    ``vectors.KIND``: the bundled one, and beside it engines that make vectors, for a third of the requests.
    ``adapters.KIND``: the bundled one, with adapters that change, for most of the requests.
    """
    keep: Path | None = None
    """Where logs are kept; by default they are deleted."""


async def run(options: Options) -> Report:
    report = Report(options.seed)
    async with AsyncExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringline-chaos-")))
        directory.mkdir(parents=True, exist_ok=True)
        sees, pools = options.kind == pictures.KIND, options.kind == vectors.KIND
        adapts = options.kind == adapters.KIND
        kind = None if pools or adapts else options.kind
        model = (pictures.make if sees else partial(make, kind))(directory / "model")
        adapted = adapters.AdapterChaos(directory, model, options.seed) if adapts else None
        fleet = await stack.enter_async_context(
            Fleet(
                directory,
                engines=options.engines,
                model=[
                    str(model),
                    *(pictures.FLAGS if sees else ()),
                    *(adapted.engine_flags if adapted is not None else ()),
                ],
                ranks=ranks.OPTIONS if options.ranks else None,
                speculation=speculation.flags(directory, drafts=not sees),
                divided=options.divided,
                others=vectors.engines(directory / "vectors", options.engines) if pools else None,
                patience=adapters.PATIENCE if adapted is not None else PATIENCE,
                processor_flags=adapted.processor_flags if adapted is not None else (),
            )
        )
        clients = [await stack.enter_async_context(connect(fleet.fronts)) for _ in range(CLIENTS)]
        per_kind = 1 if adapts else options.per_kind
        limited = [] if sees else budgets.pool(options.seed, per_kind)
        specs = (pictures.pool if sees else pool)(options.seed, per_kind) + limited
        if pools:
            specs += vectors.pool(options.seed, len(specs) // 2)
        answers = await record_answers(clients[0], specs, options.concurrency, guessing=False)
        budgets.check(limited, answers, model)
        report.calm_first_token = quantile([one.first_token or 0.0 for one in answers.values()], 0.5)
        report.calm_gap = quantile([one.longest_gap for one in answers.values()], 0.5)
        report.prefill = await prefill_cost(clients[0], _typical_tokens(answers.values()), options.seed)
        async with AsyncExitStack() as changes:
            tenants, judge = None, None
            if adapted is not None:
                answers |= await adapted.record(clients[0], options.concurrency)
                specs += adapted.specs
                tenants = await changes.enter_async_context(adapted.clients(clients))
                operator = tenants[OPERATOR][0]
                judge, report.adapters = await changes.enter_async_context(adapted.changing(fleet, operator, answers))
            load = ClosedLoop(
                clients,
                specs,
                answers,
                seed=options.seed,
                concurrency=options.concurrency,
                pause=options.pause,
                cut_share=CUT_SHARE,
                guessing_share=speculation.SHARE,
                tenants=tenants,
                judge=judge,
            )
            async with ranks.restarted(fleet) as seen:
                if options.pauses:
                    start = time.monotonic()
                    report.pauses = await measure(fleet, load, options.pauses, options.seed, NOTICED * report.calm_gap)
                    report.add(Phase("single faults", time.monotonic() - start, load.next_phase()))
                if options.seconds:
                    await _chaos(options, fleet, load, report)
            load.pause = options.rolling_pause
            for number in range(1, options.rolling + 1):
                await _rolling_restart(fleet, load, report, number)
            await load.stop()
            report.add(Phase("after", 0.0, load.next_phase()))
        report.left = await _left(fleet)
        # Processors first: one whose engine is gone would log that its requests were cut off.
        for name in reversed(fleet.processes):
            await _drain(fleet, name, report)
        if orphans := sorted(filter(alive, seen)):
            report.left["ranks"] = orphans
        report.logs = read_logs(process.log for process in fleet.processes.values())
    return report


def _typical_tokens(answers: Iterable[Outcome]) -> int:
    """Median number of tokens that an engine computes if it takes a request over half-way."""
    usages = [answer.usage for answer in answers if answer.usage is not None]
    return round(quantile([usage.prompt_tokens + usage.completion_tokens / 2 for usage in usages], 0.5))


async def _chaos(options: Options, fleet: Fleet, load: ClosedLoop, report: Report) -> None:
    injector, start = Injector(fleet), time.monotonic()
    await injector.run(schedule(options.seed, options.seconds, fleet))
    await asyncio.sleep(max(0.0, start + options.seconds - time.monotonic()))
    await fleet.heal()
    report.faults = dict(injector.done)
    report.add(Phase("chaos", time.monotonic() - start, load.next_phase()))


async def _rolling_restart(fleet: Fleet, load: ClosedLoop, report: Report, number: int) -> None:
    """Drain each process, start it again, and wait until it serves, as an operator would."""
    start = time.monotonic()
    for name, process in fleet.processes.items():
        await _drain(fleet, name, report)
        process.start()
        await process.wait_serving()
        report.replaced += 1
    report.add(Phase(f"rolling restart {number}", time.monotonic() - start, load.next_phase()))


async def _left(fleet: Fleet) -> dict[str, HeldResources]:
    """What engines and detokenizers still hold when no client sends requests any more."""
    end = time.monotonic() + SETTLE_TIMEOUT
    names = fleet.names["engine"] + fleet.names["detokenizer"]
    while True:
        held = {name: await fleet.processes[name].held() for name in names}
        left = {name: one for name, one in held.items() if one != HeldResources()}
        if not left or time.monotonic() > end:
            return left
        await asyncio.sleep(0.25)


async def _drain(fleet: Fleet, name: str, report: Report) -> None:
    if (code := await fleet.processes[name].drain()) != 0:
        report.exit_codes[name] = code
