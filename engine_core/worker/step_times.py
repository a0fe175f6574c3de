"""Measures what steps of few rows take, with drafts and without, and what a drafter takes for its drafts.

All ranks compute a step together, so none decides by its own clock which one is next: they are told one size at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine_core.kv_cache_interface import NO_STATE
from engine_core.speculation import StepTimes
from engine_core.step import NewSequence, StatePlan, StepPlan
from engine_core.worker.dummy_batches import GREEDY
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.model_runner import ModelRunner

_MOST_ROWS = 128
"""From about here on, every further row costs the same."""
_DRAFTS = 3
"""Of each sequence whose drafts are timed."""
_CONTEXT = 24
_RUNS = 3
_LONG = 0.25
"""Seconds: a step that takes longer is timed once, and no larger one is if it has more than ``_FEW_ROWS``."""
_FEW_ROWS = 8
"""Sizes up to this are always measured: here it turns out whether rows cost little."""
_PRIMES = 7919, 104729

Compute = Callable[[StepPlan], object]
"""Computes a plan, to the end."""


@dataclass(frozen=True, slots=True)
class TimedSize:
    """Seconds of steps with one number of rows."""

    plain: float
    """Of a step of as many sequences."""
    drafted: float
    """Of a step of fewer sequences, with drafts."""
    draft: float | None
    """What one more draft for each of as many sequences takes; None without a drafter."""


def step_times(most_rows: int, time_size: Callable[[int, int], TimedSize]) -> StepTimes:
    """Times of steps with up to ``most_rows`` rows; ``time_size`` times steps of so many rows so often."""
    rows, timed, runs = list[int](), list[TimedSize](), 1
    for count in _sizes(most_rows):
        found = time_size(count, runs)
        if count == 1 and found.plain <= _LONG:
            found = time_size(count, _RUNS)
        runs = _RUNS if found.plain <= _LONG else 1
        rows.append(count)
        timed.append(found)
        if found.plain > _LONG and count >= _FEW_ROWS:
            break
    plain, drafted = [each.plain for each in timed], [each.drafted for each in timed]
    drafts = [each.draft for each in timed if each.draft is not None]
    return StepTimes(tuple(rows), *map(_without_disturbance, (plain, drafted, drafts)))


def time_size(
    runner: ModelRunner, limits: BatchLimits, compute: Compute, count: int, runs: int, *, proposes: bool
) -> TimedSize:
    """Time steps of ``count`` rows with ``compute``, ``runs`` times each; all ranks do so together.

    The steps are of sequences with few tokens, all in block 0, and slot 0 of the states. Their tokens differ, as those
    of different texts do, so that experts are read as they will be. ``proposes``: whether the drafter is timed, too.
    """
    measuring = _Measuring(runner, limits, compute, runs)
    plain = measuring.seconds(count, 0)
    # With drafts, the rows are of fewer sequences, each of which takes a larger part of attention.
    num_drafts = min(_DRAFTS, count - 1)
    drafted = measuring.seconds(count // (1 + num_drafts), num_drafts) if num_drafts else plain
    draft = max(0.0, measuring.seconds(count, 0, proposals=2) - plain) / 2 if proposes else None
    return TimedSize(plain, drafted, draft)


def _sizes(most: int) -> list[int]:
    sizes, count = list[int](), 1
    while count <= min(most, _MOST_ROWS):
        sizes.append(count)
        count *= 2
    return sizes


def _without_disturbance(seconds: list[float]) -> tuple[float, ...]:
    """``seconds`` of sizes that double: what disturbs a step makes it slower than a larger one, or than two smaller."""
    least = list(seconds)
    for at in range(1, len(least)):
        least[at] = min(least[at], 2 * least[at - 1])
    for at in range(len(least) - 1, 0, -1):
        least[at - 1] = min(least[at - 1], least[at])
    return tuple(least)


class _Measuring:
    """Plans the steps to be timed."""

    def __init__(self, runner: ModelRunner, limits: BatchLimits, compute: Compute, runs: int) -> None:
        self._runner = runner
        self._limits = limits
        self._compute = compute
        self._runs = runs
        self._vocab_size = runner.model.vocab_size
        self._serial = 0

    def seconds(self, count: int, num_drafts: int, *, proposals: int = 0) -> float:
        """The least seconds of a step of ``count`` sequences with so many drafts each; proposing as many, if any."""
        length = min(_CONTEXT, max(1, self._limits.max_model_len - (self._runs + 1) * (1 + num_drafts) - 1))
        self._run(self._introduction(count, length))
        asked = dict.fromkeys(range(count), proposals) if proposals else {}
        plans = (replace(self._plan(count, num_drafts), proposals=asked) for _ in range(self._runs))
        seconds = min(map(self._run, plans))
        self._release(count)
        return seconds

    def _run(self, plan: StepPlan) -> float:
        start = time.perf_counter()
        self._compute(plan)
        seconds = time.perf_counter() - start
        # A model may draw the same token for all.
        for seq_id in plan.seq_ids:
            slot = self._runner.batch.slot_of(seq_id)
            assert slot is not None
            self._runner.batch.known_token_ids(slot)[-1:] = self._token()
        return seconds

    def _introduction(self, count: int, length: int) -> StepPlan:
        limits = self._limits
        blocks = [[0] * limits.max_blocks_per_table for _ in limits.kv_cache_groups]
        new = [
            NewSequence(seq_id, 0, [self._token() for _ in range(length)], length, length - 1, blocks, GREEDY)
            for seq_id in range(count)
        ]
        return self._plan(count, 0, new)

    def _plan(self, count: int, num_drafts: int, new: list[NewSequence] | None = None) -> StepPlan:
        ids = list(range(count))
        drafts = {seq_id: [self._token() for _ in range(num_drafts)] for seq_id in ids} if num_drafts else {}
        states = StatePlan([NO_STATE if new else 0] * count, [0] * count) if self._limits.keeps_states else None
        num_tokens, samples = [1 + num_drafts] * count, [True] * count
        return StepPlan(0, [], new or [], ids, num_tokens, samples, {}, drafts, states=states)

    def _release(self, count: int) -> None:
        for seq_id in range(count):
            self._runner.forget(seq_id)
        self._runner.batch.update(StepPlan(0, list(range(count)), [], [], [], [], {}))

    def _token(self) -> int:
        self._serial += 1
        return self._serial * _PRIMES[0] % _PRIMES[1] % self._vocab_size
