"""The time of single steps, inside an engine that runs in this process."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from benchmarks.work import Work
from engine_core.llm import LLM
from engine_core.request import SamplingParams
from engine_core.step import StepPlan
from engine_core.worker.model_runner import ComputedStep
from engine_core.worker.worker import Worker

GREEDY = SamplingParams(temperature=0.0)
_STEPS = 32
"""Decoding steps that are to be measured."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The beginning of a step."""

    at: float
    sequences: int
    rows: int


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record the steps that the worker of this process launches."""
    launches: list[Launch] = []
    launch = Worker.launch

    def timed(worker: Worker, plan: StepPlan) -> ComputedStep:
        launches.append(Launch(time.perf_counter(), len(plan.seq_ids), plan.total_tokens))
        return launch(worker, plan)

    with patch.object(Worker, "launch", timed):
        yield launches


def decoding_seconds(
    llm: LLM, batch: int, prompt: int, step_tokens: int, params: SamplingParams = GREEDY, seed: int = 0
) -> float:
    """Median seconds from one step to the next, of steps that compute one token each of ``batch`` sequences.

    Those that are admitted first decode while the prompts of the others are computed, so all get so many tokens that
    enough steps are left when the last prompt is done.
    """
    output = -(-batch * prompt // max(1, step_tokens - batch)) + _STEPS
    exact = replace(params, max_tokens=output, ignore_eos=True)
    with recorded() as launches:
        llm.generate(Work(batch, prompt, output, seed=seed).prompts(), exact, use_tqdm=False)
    pure = [
        after.at - before.at
        for before, after in itertools.pairwise(launches)
        if before.sequences == before.rows == after.rows == batch
    ]
    if len(pure) < _STEPS // 2:
        raise RuntimeError(f"{len(pure)} steps decoded all {batch} sequences; {_STEPS // 2} are needed")
    return statistics.median(pure[len(pure) // 4 :])
