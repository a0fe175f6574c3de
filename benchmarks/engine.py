"""The engine alone, offline, compared with the roofline of the same rounds.

    python -m benchmarks.engine --model qwen3-0.6b --batch 16 --prompt 128 --output 64
    python -m benchmarks.engine --sweep streams            # 1 … 256; also: context, prefix

Prefill is the time of a round that ends with the first token; decoding is the rest of a whole round's time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.limits import Gauge, Limits
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.roofline import ModelCost
from benchmarks.rounds import Figure, interleave
from benchmarks.shapes import find_model, model_options
from benchmarks.work import Outcome, Work
from benchmarks.workers.ringline_engine import RinglineEngine

_STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
_PREFIX_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
_WARM_UP_PROMPT = 16
_WEIGHT_BYTES = {None: 2.0, "int8": 1.0}

Run = Callable[[Work], Outcome]


@dataclass(frozen=True, slots=True)
class _Round:
    """One round: the work, its prefill alone, and the limits between them."""

    prefill: float
    whole: float
    limits: Limits
    cached_tokens: int


def measure(run: Run, work: Work, cost: ModelCost, gauge: Gauge, rounds: int, seeds: Iterator[int]) -> Row:
    """A row of figures of ``work``; ``seeds`` never repeats, so no prompt is found in the prefix cache."""
    if work.shared:  # compute the shared prefix before the measurement
        run(Work(batch=1, prompt=work.shared + 1, output=1, shared=work.shared, shared_seed=work.shared_seed))

    def one_round(_: int) -> _Round:
        first = run(replace(work, output=1, seed=next(seeds)))
        limits = gauge.take()
        whole = run(replace(work, seed=next(seeds))) if work.output > 1 else first
        return _Round(first.seconds, whole.seconds, limits, whole.cached_tokens)

    taken = interleave(rounds, {"engine": one_round})["engine"]
    return _row(work, cost, taken)


def _row(work: Work, cost: ModelCost, taken: Sequence[_Round]) -> Row:
    prefill = Figure.of(work.batch * work.prompt / r.prefill for r in taken)
    tokens = work.batch * work.output
    whole = Figure.of(tokens / r.whole for r in taken)
    row: dict[str, Any] = {
        "streams": work.batch,
        "prompt": work.prompt,
        "output": work.output,
        "cached": taken[-1].cached_tokens / (work.batch * work.prompt),
        "prompt tok/s": prefill.median,
        "prompt limit": Figure.of(
            work.batch * work.prompt / cost.prefill_seconds(work, r.limits) for r in taken
        ).median,
        "TTFT ms": 1e3 * Figure.of(r.prefill for r in taken).median,
    }
    if work.output > 1:
        steps = work.batch * (work.output - 1)
        row |= {
            "decode tok/s": Figure.of(steps / max(r.whole - r.prefill, 1e-9) for r in taken).median,
            "decode limit": Figure.of(steps / cost.decode_seconds(work, r.limits) for r in taken).median,
            "tok/s": whole.median,
            "tok/s low": whole.lowest,
            "tok/s high": whole.highest,
            "limit": Figure.of(tokens / cost.seconds(work, r.limits) for r in taken).median,
            "share": Figure.of(cost.seconds(work, r.limits) / r.whole for r in taken).median,
        }
    row["stream GB/s"] = Figure.of(r.limits.bandwidth / 1e9 for r in taken).median
    row["bf16 GFLOP/s"] = Figure.of(r.limits.flops / 1e9 for r in taken).median
    return row


def works(sweep: str | None, base: Work, longest: int) -> list[Work]:
    """The works of a sweep around ``base``; contexts are those that fit ``longest`` tokens."""
    match sweep:
        case "streams":
            return [replace(base, batch=batch) for batch in _STREAMS]
        case "context":
            return [replace(base, prompt=length) for length in _CONTEXTS if length + base.output <= longest]
        case "prefix":
            shared = [round(share * base.prompt) for share in _PREFIX_SHARES]
            return [replace(base, shared=tokens, shared_seed=number) for number, tokens in enumerate(shared)]
    return [base]


def run_sweep(
    model: Path, sweep: str | None, base: Work, rounds: int, threads: int | None, options: dict[str, Any]
) -> list[Row]:
    """Start an engine with ``options`` and measure the works of ``sweep``."""
    cost = ModelCost.of(model, _WEIGHT_BYTES[options.get("quantization")])
    engine = RinglineEngine(str(model), num_threads=threads, **options)
    gauge, seeds, rows = Gauge(threads), itertools.count(1), []
    for work in works(sweep, base, engine.llm.model.max_model_len):
        short = min(work.prompt, _WARM_UP_PROMPT)
        engine.run(replace(work, prompt=short, output=2, shared=0, seed=next(seeds)))  # warm-up: touches memory
        rows.append(measure(engine.run, work, cost, gauge, rounds, seeds))
    engine.llm.close()
    return rows


def engine_options(pairs: Sequence[str]) -> dict[str, Any]:
    """``name=value`` options of the engine, numbers as numbers."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        options[name] = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
    return options


def main() -> None:
    """Measure one work, or a sweep, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "qwen3-0.6b")
    output_options(parser)
    parser.add_argument("--batch", type=int, help="sequences (16; for the context sweep 1, for the prefix sweep 8)")
    parser.add_argument("--prompt", type=int, help="prompt tokens of each (128; for the prefix sweep 1024)")
    parser.add_argument("--output", type=int, default=64, help="output tokens of each (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown (%(default)s)")
    parser.add_argument("--sweep", choices=("streams", "context", "prefix"))
    parser.add_argument("--threads", type=int, help="of the engine and of the limits; all by default")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the sweep")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine")
    arguments = parser.parse_args()
    base = base_work(arguments.sweep, arguments.output, arguments.batch, arguments.prompt)
    model = find_model(arguments.model, arguments.models)
    rows = run_sweep(
        model, arguments.sweep, base, arguments.rounds, arguments.threads, engine_options(arguments.option)
    )
    print_table(rows, f"{arguments.model} {arguments.sweep or ''}")
    emit(arguments, f"engine {arguments.sweep or 'once'}", rows)
    if arguments.plot is not None and arguments.sweep is not None:
        from benchmarks.plots import plot_sweep

        plot_sweep(arguments.sweep, rows, arguments.plot)


def base_work(sweep: str | None, output: int, batch: int | None = None, prompt: int | None = None) -> Work:
    """The work that a sweep varies, with the sweep's defaults."""
    batch = batch or {"context": 1, "prefix": 8}.get(sweep or "", 16)
    return Work(batch=batch, prompt=prompt or (1024 if sweep == "prefix" else 128), output=output)


if __name__ == "__main__":
    main()
