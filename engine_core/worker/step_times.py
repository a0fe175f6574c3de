"""Measures what steps of few rows take, with drafts and without, and what a drafter takes for its drafts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

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


TimeSteps = Callable[[int, int, int, int], float]
"""Seconds of a step of so many sequences with so many drafts each, that proposes so many; the least of so many runs."""


def measure_step_times(time_steps: TimeSteps, most_rows: int, *, proposes: bool) -> StepTimes:
    """Time steps of up to ``most_rows`` rows. ``proposes``: whether a drafter is timed, too."""
    rows, plain, drafted, drafts = list[int](), list[float](), list[float](), list[float]()
    for count in _sizes(most_rows):
        runs = 1 if plain and plain[-1] > _LONG else _RUNS
        rows.append(count)
        plain.append(time_steps(count, 0, 0, runs))
        # With drafts, the rows are of fewer sequences, each of which takes a larger part of attention.
        num_drafts = min(_DRAFTS, count - 1)
        drafted.append(time_steps(count // (1 + num_drafts), num_drafts, 0, runs) if num_drafts else plain[-1])
        if proposes:
            drafts.append(max(0.0, time_steps(count, 0, 2, runs) - plain[-1]) / 2)
        if plain[-1] > _LONG and count >= _FEW_ROWS:
            break
    return StepTimes(tuple(rows), *map(_without_disturbance, (plain, drafted, drafts)))


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


class StepTimer:
    """Times steps of sequences with few tokens, all in block 0, and slot 0 of the states; all ranks do so together.

    Tokens differ, as those of different texts do, so that experts are read as they will be.
    """

    def __init__(self, runner: ModelRunner, limits: BatchLimits, compute: Compute) -> None:
        self._runner = runner
        self._limits = limits
        self._compute = compute
        self._vocab_size = runner.model.vocab_size
        self._serial = 0

    def seconds(self, count: int, num_drafts: int, proposals: int, runs: int) -> float:
        """As ``TimeSteps``."""
        length = min(_CONTEXT, max(1, self._limits.max_model_len - (_RUNS + 2) * (1 + num_drafts) - 1))
        asked = dict.fromkeys(range(count), proposals) if proposals else {}
        # A drafting model reads what came before in the first step, whose time does not count.
        self._run(replace(self._introduction(count, length), proposals=asked))
        least = min(self._run(replace(self._plan(count, num_drafts), proposals=asked)) for _ in range(runs))
        self._release(count)
        return least

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
        self._runner.update(StepPlan(0, list(range(count)), [], [], [], [], {}))

    def _token(self) -> int:
        self._serial += 1
        return self._serial * _PRIMES[0] % _PRIMES[1] % self._vocab_size
