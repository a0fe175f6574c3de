"""Rolling changes of the model under load; every answer is compared with the right one of the model that gave it."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ringline import AsyncClient

from tests.chaos.fleet import Fleet, engine_flags
from tests.chaos.load import ask, connect, record_answers
from tests.chaos.outcome import Outcome, find_defects
from tests.chaos.workload import RequestSpec, pool
from tests.rolling.variants import Change, variant

CONCURRENCY = 4
"""Requests in flight while the right answers are recorded."""
MODEL_GONE = "MODEL_GONE"
LEAD = 0.3
"""Seconds between the ``LONGEST`` requests and the engine's drain."""
FIRST_ANSWER = 120.0
"""Seconds in which the old model must have given an answer."""
LONGEST = RequestSpec(
    "longest", "Once upon a time", options={"temperature": 0.0, "max_tokens": 850, "ignore_eos": True}
)
"""Sent right before an engine is replaced, so that it must move, or end."""


@dataclass(frozen=True)
class Options:
    seed: int
    changes: Sequence[Change] = tuple(Change)
    size: int = 2
    """Processes of each service."""
    rate: float = 3.0
    """Requests per second, in an open loop."""
    calm: float = 3.0
    """Seconds of load before a change, and after each replaced engine."""
    patience: float = 4.0
    """Seconds that a processor lets a request wait for an engine of its model."""
    longest_pause: float = 2.0
    """Allowed seconds until the first delta and between two deltas."""
    per_kind: int = 1
    kinds: int | None = None
    """Kinds of requests in the load; by default all."""
    keep: Path | None = None
    """Where models and logs are kept; by default they are deleted."""


@dataclass
class Rollout:
    """Results of one change."""

    change: Change
    seconds: float = 0.0
    requests: int = 0
    by_model: Counter[str] = field(default_factory=Counter)
    """Answers of the old model (``before``) and the new one (``after``)."""
    gone: int = 0
    """Requests that only the old model could have finished, and that ended with MODEL_GONE."""
    longest_pause: float = 0.0
    longest_wait: float = 0.0
    """Longest TTFT."""
    problems: list[str] = field(default_factory=list)

    def show(self) -> None:
        models = ", ".join(f"{count} by {name}" for name, count in sorted(self.by_model.items()))
        print(
            f"{self.change:14} {self.requests:4} requests in {self.seconds:3.0f} s: {models}; {self.gone} ended as "
            f"their model was gone; longest pause {self.longest_pause:.2f} s, longest wait for a first token "
            f"{self.longest_wait:.2f} s; {len(self.problems)} problems",
            *self.problems[:20],
            sep="\n  ",
            flush=True,
        )


async def run(options: Options, report: Callable[[Rollout], None]) -> list[Rollout]:
    """Make one change after the other to every engine in turn; ``report`` is called with each result."""
    async with AsyncExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringline-rolling-")))
        directory.mkdir(parents=True, exist_ok=True)
        bundled = variant(directory / "bundled", None)
        size = options.size
        fleet = Fleet(directory, size, size, size, model=bundled, patience=options.patience)
        await stack.enter_async_context(fleet)
        client = await stack.enter_async_context(connect(fleet.fronts))
        specs = [*pool(options.seed, options.per_kind)[: options.kinds], LONGEST]
        before = await _right_answers(client, specs)
        rollouts = []
        for change in options.changes:
            model = variant(directory / change, change)
            rollout, before = await _roll_out(change, model, fleet, client, specs, before, options)
            rollouts.append(rollout)
            report(rollout)
        return rollouts


async def _right_answers(client: AsyncClient, specs: Sequence[RequestSpec]) -> dict[str, Outcome]:
    """While all engines serve the same model."""
    answers = await record_answers(client, specs, CONCURRENCY)
    assert len({tuple(answer.models) for answer in answers.values()}) == 1
    return answers


async def _roll_out(
    change: Change,
    model: Sequence[str],
    fleet: Fleet,
    client: AsyncClient,
    specs: Sequence[RequestSpec],
    before: dict[str, Outcome],
    options: Options,
) -> tuple[Rollout, dict[str, Outcome]]:
    """Return the results, and the right answers of the new model."""
    start = time.monotonic()
    asked: list[tuple[RequestSpec, asyncio.Task[Outcome]]] = []
    load = asyncio.create_task(_load(client, specs, options.rate, asked))
    problems = []
    longest: list[asyncio.Task[Outcome]] = []
    last_drain = start
    await asyncio.sleep(options.calm)
    await asyncio.wait([task for _, task in asked], timeout=FIRST_ANSWER, return_when=asyncio.FIRST_COMPLETED)
    for name in fleet.names["engine"]:
        engine = fleet.processes[name]
        longest += [asyncio.create_task(ask(client, LONGEST)) for _ in range(2 * options.size)]
        await asyncio.sleep(LEAD)
        last_drain = time.monotonic()
        if (code := await engine.drain()) != 0:
            problems.append(f"{name} ended with {code}")
        engine.flags = engine_flags(model)
        engine.start()
        await engine.wait_serving()
        await asyncio.sleep(options.calm)
    load.cancel()
    answers = [(spec, await task) for spec, task in [*asked, *((LONGEST, task) for task in longest)]]
    rollout = Rollout(change, time.monotonic() - start, len(answers), problems=problems)
    after = await _right_answers(client, specs)
    _check_answers(rollout, answers, before, after, last_drain, options.longest_pause)
    return rollout, after


async def _load(
    client: AsyncClient,
    specs: Sequence[RequestSpec],
    rate: float,
    asked: list[tuple[RequestSpec, asyncio.Task[Outcome]]],
) -> None:
    """Send requests at a steady rate, and add them to ``asked``, until cancelled."""
    for spec in itertools.cycle(specs):
        asked.append((spec, asyncio.create_task(ask(client, spec))))
        await asyncio.sleep(1 / rate)


def _check_answers(
    rollout: Rollout,
    answers: Sequence[tuple[RequestSpec, Outcome]],
    before: dict[str, Outcome],
    after: dict[str, Outcome],
    last_drain: float,
    longest_pause: float,
) -> None:
    """Compare every answer with the right one of its model.

    ``last_drain``: monotonic time at which the old model's last engine began to drain. ``longest_pause``: as in
    ``Options``.
    """
    names = {next(iter(before.values())).models[0]: "before", next(iter(after.values())).models[0]: "after"}
    if len(names) != 2:
        rollout.problems.append("both models have the same digest")
    for spec, outcome in answers:
        if outcome.reason == MODEL_GONE and outcome.failed < last_drain:
            rollout.problems.append(f"{spec.name}: its model was called gone while an engine had it")
        if not outcome.models and outcome.reason == MODEL_GONE:
            rollout.gone += 1  # it was admitted, and the last engine of its model ended before one had started it
            continue
        if len(outcome.models) > 1:
            rollout.problems.append(f"{spec.name}: computed by {len(outcome.models)} models")
            continue
        name = names.get(outcome.models[0], "an unknown one") if outcome.models else "none"
        gone = name == "before" and outcome.reason == MODEL_GONE
        rollout.by_model[name] += not gone
        rollout.gone += gone
        right = {"before": before, "after": after}.get(name)
        if right is None:
            rollout.problems.append(f"{spec.name}: computed by {name}: {outcome.error}")
            continue
        if gone:
            outcome.error = ""
        for defect, words in find_defects(outcome, right[spec.name], cancelled=gone).items():
            rollout.problems.append(f"{spec.name}, {name}: {defect}: {words}")
        rollout.longest_pause = max(rollout.longest_pause, outcome.longest_gap)
        rollout.longest_wait = max(rollout.longest_wait, outcome.first_token or 0.0)
    if not all(rollout.by_model[name] for name in names.values()):
        rollout.problems.append("only one of the models gave answers")
    if rollout.longest_pause > longest_pause:
        rollout.problems.append(f"a pause of {rollout.longest_pause:.2f} s")
    if rollout.longest_wait > longest_pause:
        rollout.problems.append(f"a wait of {rollout.longest_wait:.2f} s for a first token")
