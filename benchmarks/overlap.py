"""The effect of ``async_scheduling`` on the time of a decoding step, and on the pause between two steps.

Engines with and without it take turns.

    python -m benchmarks.overlap --model tiny-llama --batch 64

A pause is the time from the end of one step's computing (model and sampler) to the beginning of the next one's.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.shapes import find_model, model_options
from benchmarks.work import Work
from engine_core.llm import LLM
from engine_core.request import SamplingParams
from engine_core.step import StepPlan
from engine_core.worker.model_runner import ComputedStep
from engine_core.worker.worker import Worker

_SAMPLING = {"greedy": SamplingParams(temperature=0.0), "sampled": SamplingParams(temperature=0.8, top_p=0.95)}
_CACHE_BYTES = 256 << 20


@dataclass(slots=True)
class Steps:
    """When the steps of a round were computed, in seconds."""

    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def step_us(self) -> float:
        """Microseconds from step to step, once all sequences decode."""
        return 1e6 * statistics.median(after - before for before, after in itertools.pairwise(self.begun[2:]))

    def pause_us(self) -> float:
        """Microseconds between two steps."""
        return 1e6 * statistics.median(
            begun - ended for ended, begun in zip(self.ended[2:-1], self.begun[3:], strict=True)
        )


@contextmanager
def recorded() -> Iterator[Steps]:
    """Record when the worker in this process computes."""
    steps, launch = Steps(), Worker.launch

    def timed(worker: Worker, plan: StepPlan) -> ComputedStep:
        steps.begun.append(time.perf_counter())
        try:
            return launch(worker, plan)
        finally:
            steps.ended.append(time.perf_counter())

    with patch.object(Worker, "launch", timed):
        yield steps


def run(llm: LLM, work: Work, params: SamplingParams, seeds: Iterator[int], number: int) -> Steps:
    """Run round ``number``, with prompts that are in no prefix cache."""
    params = replace(params, max_tokens=work.output, ignore_eos=True)
    prompts = replace(work, seed=next(seeds)).prompts()
    with recorded() as steps:
        llm.generate(prompts, params)
    return steps


def measure(model: Path, work: Work, rounds: int, threads: int | None, **options: Any) -> list[Row]:
    """A row per kind of sampling and scheduling, with ratios within a round; ``options``: those of the engines."""
    engines = {
        name: LLM(
            str(model),
            async_scheduling=overlapped,
            num_threads=threads,
            max_num_seqs=work.batch,
            kv_cache_memory_bytes=_CACHE_BYTES,
            **options,
        )
        for name, overlapped in (("one by one", False), ("overlapping", True))
    }
    seeds = itertools.count(1)
    rows: list[Row] = []
    for sampled, params in _SAMPLING.items():
        contestants = {name: partial(run, llm, work, params, seeds) for name, llm in engines.items()}
        interleave(1, contestants)  # warm-up
        taken = interleave(rounds, contestants)
        plain = [steps.step_us() for steps in taken["one by one"]]
        for name, kept in taken.items():
            times = [steps.step_us() for steps in kept]
            rows.append(
                {
                    "tokens": sampled,
                    "steps": name,
                    "µs a step": Figure.of(times).median,
                    "µs between": Figure.of(steps.pause_us() for steps in kept).median,
                    "step / one by one": str(ratio(times, plain)),
                }
            )
    for llm in engines.values():
        llm.close()
    return rows


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "tiny-llama")
    output_options(parser)
    parser.add_argument("--batch", type=int, default=64, help="sequences (%(default)s)")
    parser.add_argument("--output", type=int, default=128, help="output tokens of each (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are shown (%(default)s)")
    parser.add_argument("--threads", type=int, help="of the engines; all by default")
    arguments = parser.parse_args()
    model = find_model(arguments.model, arguments.models)
    work = Work(batch=arguments.batch, prompt=16, output=arguments.output)
    rows = measure(model, work, arguments.rounds, arguments.threads)
    print_table(rows, f"{arguments.model}, {arguments.batch} sequences")
    emit(arguments, "overlap", rows)


if __name__ == "__main__":
    main()
