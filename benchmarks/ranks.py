"""Engines of several ranks beside one process with as many threads, in turns; and what their gathers cost.

    python -m benchmarks.ranks --model qwen3-0.6b          # two ranks of one thread, one process of two threads
    python -m benchmarks.ranks --model qwen3-moe --rounds 5
    python -m benchmarks.ranks --gathers                   # bytes and time of each gather of a step

Every engine computes the same tokens, which is checked first.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

import argparse
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gathers import gather_rows
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.shapes import find_model, model_options
from benchmarks.work import Work
from benchmarks.workers.ringline_engine import RinglineEngine
from engine_core.request import SamplingParams

ONE, TENSOR, PIPELINE = "1 process", "tensor parallel", "pipeline parallel"
_STREAMS = 32


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two engines do, and the least ratio of their speeds that is wanted."""

    name: str
    engine: str
    work: Work
    against: Work
    wanted: float
    experts_wanted: float
    prefill: bool = False

    def tokens(self, work: Work) -> int:
        """Those that a round is about."""
        return work.batch * (work.prompt if self.prefill else work.output - 1)


def comparisons(ranks: int) -> tuple[Comparison, ...]:
    """A pipeline of ``ranks`` stages is compared with steps of as many rows as one of its micro-batches has: both read
    all weights for them.
    """
    one, some, prompt = Work(1, 32, 64), Work(16, 32, 32), Work(1, 1024, 1)
    piped, micro = Work(_STREAMS, 32, 32), Work(_STREAMS // ranks, 32, 32)
    return (
        Comparison("decode 1", TENSOR, one, one, 0.9, 0.85),
        Comparison("decode 16", TENSOR, some, some, 0.9, 0.85),
        Comparison("prefill 1024", TENSOR, prompt, prompt, 0.9, 0.9, prefill=True),
        Comparison(f"decode {_STREAMS}", PIPELINE, piped, micro, 0.85, 0.85),
    )


def compare(
    engines: dict[str, RinglineEngine], each: Comparison, rounds: int, seeds: Iterator[int], *, experts: bool
) -> Row:
    """Tokens per second of both engines, and their ratio."""

    def speed(name: str, work: Work) -> float:
        first = engines[name].run(Work(work.batch, work.prompt, 1, seed=next(seeds))).seconds
        if each.prefill:
            return each.tokens(work) / first
        whole = engines[name].run(Work(work.batch, work.prompt, work.output, seed=next(seeds))).seconds
        return each.tokens(work) / max(whole - first, 1e-9)

    taken = interleave(
        rounds, {each.engine: lambda _: speed(each.engine, each.work), ONE: lambda _: speed(ONE, each.against)}
    )
    found = ratio(taken[each.engine], taken[ONE])
    return {
        "work": each.name,
        "engine": each.engine,
        "tok/s": Figure.of(taken[each.engine]).median,
        f"tok/s of {ONE}": Figure.of(taken[ONE]).median,
        "ratio": found.median,
        "lowest": found.lowest,
        "highest": found.highest,
        "wanted": each.experts_wanted if experts else each.wanted,
    }


def start(model: Path, size: dict[str, Any], stack: ExitStack) -> tuple[RinglineEngine, float]:
    """An engine, which ``stack`` closes, and the seconds that it took to start."""
    options = {"kv_cache_memory_bytes": 512 << 20, "max_model_len": 2048, "enable_prefix_caching": False}
    began = time.perf_counter()
    engine = RinglineEngine(str(model), **size, **options)
    stack.callback(engine.llm.close)
    return engine, time.perf_counter() - began


def compare_all(model: Path, ranks: int, rounds: int, *, experts: bool) -> list[Row]:
    """Every engine of ranks beside the one process, two at a time: more may not fit."""
    seeds, rows = itertools.count(100), []
    sizes = {TENSOR: "tensor_parallel_size", PIPELINE: "pipeline_parallel_size"}
    with ExitStack() as whole:
        one, seconds = start(model, {"num_threads": ranks}, whole)
        print(f"{ONE} started in {seconds:.1f} s", flush=True)
        for name, option in sizes.items():
            with ExitStack() as stack:
                engine, seconds = start(model, {option: ranks, "num_threads": 1}, stack)
                print(f"{name} started in {seconds:.1f} s", flush=True)
                engines = {ONE: one, name: engine}
                check_tokens(engines)
                here = [each for each in comparisons(ranks) if each.engine == name]
                rows += [compare(engines, each, rounds, seeds, experts=experts) for each in here]
    return rows


def check_tokens(engines: dict[str, RinglineEngine]) -> None:
    """Raise ``SystemExit`` unless all engines compute the same."""
    prompts, params = Work(4, 48, 24, seed=7).prompts(), SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    tokens = {
        name: [result.choices[0].token_ids for result in engine.llm.generate(prompts, params)]
        for name, engine in engines.items()
    }
    if different := [name for name, found in tokens.items() if found != tokens[ONE]]:
        raise SystemExit(f"other tokens than those of {ONE}: {', '.join(different)}")


def main() -> None:
    """Compare, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "qwen3-0.6b")
    output_options(parser)
    parser.add_argument("--ranks", type=int, default=2, help="of each engine (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown (%(default)s)")
    parser.add_argument("--gathers", action="store_true", help="show what each gather of a step costs instead")
    given = parser.parse_args()
    model = find_model(given.model, given.models)
    if given.gathers:
        rows = gather_rows(model, given.ranks, (1, 16, 1024))
    else:
        rows = compare_all(model, given.ranks, given.rounds, experts="moe" in str(given.model))
    print_table(rows, f"{given.model}, {given.ranks} ranks")
    emit(given, "gathers" if given.gathers else "ranks", rows)


if __name__ == "__main__":
    main()
