"""The same work on several offline engines, in turns round by round, with limits measured in every round."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.contestants import LLAMA_CPP, LLAMA_CPP_Q8, OURS, OURS_INT8, TRANSFORMERS, VLLM, VLLM_EAGER
from benchmarks.limits import Gauge, Limits
from benchmarks.report import Row
from benchmarks.roofline import ModelCost
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.work import Work
from benchmarks.worker import Worker, WorkerError, WorkerSpec

_WEIGHT_BYTES = {OURS_INT8: 1.0, LLAMA_CPP_Q8: 34 / 32}


@dataclass(frozen=True, slots=True)
class Contest:
    """A work and the engines that do it. With ``decode``, a second run separates decoding from prefill."""

    name: str
    work: Work
    engines: tuple[str, ...]
    decode: bool = False


CONTESTS = (
    Contest("prefill 1024", Work(1, 1024, 1), (OURS, OURS_INT8, VLLM, LLAMA_CPP, TRANSFORMERS)),
    Contest(
        "batch 1",
        Work(1, 128, 64),
        (OURS, OURS_INT8, VLLM, VLLM_EAGER, LLAMA_CPP, LLAMA_CPP_Q8, TRANSFORMERS),
        decode=True,
    ),
    Contest("batch 16", Work(16, 128, 64), (OURS, OURS_INT8, VLLM, VLLM_EAGER, LLAMA_CPP)),
    Contest("batch 64", Work(64, 128, 64), (OURS, OURS_INT8, VLLM)),
)


@dataclass(frozen=True, slots=True)
class _Taken:
    """One round of one engine."""

    prefill: float | None
    whole: float


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from process start to first token of each engine; for engines that failed, the reason."""

    rows: list[Row]


def start_all(specs: Sequence[WorkerSpec], logs: Path, stack: contextlib.ExitStack) -> tuple[dict[str, Worker], Start]:
    """Start one engine after the other; ``stack`` ends them."""
    workers: dict[str, Worker] = {}
    rows: list[Row] = []
    for spec in specs:
        print(f"starting {spec.name}", flush=True)
        try:
            workers[spec.name] = stack.enter_context(Worker(spec, logs))
            rows.append({"engine": spec.name, "seconds": workers[spec.name].start_seconds, "problem": ""})
        except WorkerError as error:
            rows.append({"engine": spec.name, "seconds": None, "problem": str(error).splitlines()[-1][:120]})
            print(error, flush=True)
    return workers, Start(rows)


def end_all_but(names: Collection[str], workers: dict[str, Worker]) -> None:
    """End the engines that are no longer needed: together they take most of a machine's memory."""
    for name in [name for name in workers if name not in names]:
        workers.pop(name).close()


def contend(
    contest: Contest,
    workers: dict[str, Worker],
    cost: ModelCost,
    gauge: Gauge,
    rounds: int,
    ours: Sequence[str] = (OURS_INT8, OURS),
    weight_bytes: Mapping[str, float] = _WEIGHT_BYTES,
) -> tuple[list[Row], list[Row]]:
    """Figures of every engine, and ratios of every pair (``ours`` over theirs) within the rounds.

    ``weight_bytes``: of a weight, for engines that keep other ones than the model's type.

    An engine that dies is removed from ``workers``, and has no figures.
    """
    limits: list[Limits] = []

    def taker(name: str) -> Callable[[int], _Taken | None]:
        def take(number: int) -> _Taken | None:
            if name not in workers:
                return None
            try:
                limits.append(gauge.take())
                return _take(contest, workers[name], number)
            except WorkerError as error:
                print(error, flush=True)
                workers.pop(name).close()
                return None

        return take

    for name in contest.engines:
        taker(name)(-1)  # warm-up: compiles kernels and touches memory
    rounds_of = interleave(rounds, {name: taker(name) for name in contest.engines if name in workers})
    taken = {name: [t for t in rounds_of[name] if t is not None] for name in rounds_of if name in workers}
    middle = Limits(
        Figure.of(limit.bandwidth for limit in limits).median, Figure.of(limit.flops for limit in limits).median
    )
    costs = {name: cost.with_weight_bytes(weight_bytes.get(name, 2.0)) for name in taken}
    rows = [_row(contest, name, rounds_, costs[name], middle) for name, rounds_ in taken.items()]
    return rows, _ratios(contest, taken, ours)


def _take(contest: Contest, worker: Worker, number: int) -> _Taken:
    seed = 2 * (number + 2)
    prefill = None
    if contest.decode:
        prefill = worker.run(replace(contest.work, output=1, seed=seed)).seconds
    return _Taken(prefill, worker.run(replace(contest.work, seed=seed + 1)).seconds)


def _rates(contest: Contest, taken: Sequence[_Taken]) -> dict[str, list[float]]:
    """Tokens per second in every round, keyed by the kind of tokens."""
    work = contest.work
    if work.output == 1:
        return {"prompt tok/s": [work.batch * work.prompt / t.whole for t in taken]}
    rates = {"tok/s": [work.batch * work.output / t.whole for t in taken]}
    if contest.decode:
        rates["decode tok/s"] = [work.batch * (work.output - 1) / (t.whole - (t.prefill or 0.0)) for t in taken]
    return rates


def _row(contest: Contest, engine: str, taken: Sequence[_Taken], cost: ModelCost, limits: Limits) -> Row:
    work, rates = contest.work, _rates(contest, taken)
    main = Figure.of(next(iter(rates.values())))
    decode = Figure.of(rates["decode tok/s"]).median if "decode tok/s" in rates else None
    counted = work.batch * (work.prompt if work.output == 1 else work.output)
    step = cost.step(work.batch, work.batch, 0, work.batch * (work.prompt + work.output / 2))
    read = None if decode is None else step.read * decode / work.batch
    return {
        "work": contest.name,
        "engine": engine,
        "counted": next(iter(rates)),
        "tok/s": main.median,
        "low": main.lowest,
        "high": main.highest,
        "limit": counted / cost.seconds(work, limits),
        "decode tok/s": decode,
        "read GB/s": None if read is None else read / 1e9,
        "of stream": None if read is None else read / limits.bandwidth,
        "stream GB/s": limits.bandwidth / 1e9,
        "bf16 GFLOP/s": limits.flops / 1e9,
    }


def _ratios(contest: Contest, taken: dict[str, list[_Taken]], all_ours: Sequence[str]) -> list[Row]:
    """Ratios of every engine of ours to every other one, those of ours that are listed after it among them."""
    rates = {name: _rates(contest, rounds) for name, rounds in taken.items()}
    rows: list[Row] = []
    for place, ours in enumerate(all_ours):
        for theirs in rates:
            if ours not in rates or theirs in all_ours[: place + 1]:
                continue
            for counted, values in rates[ours].items():
                figure = ratio(values, rates[theirs][counted])
                rows.append(
                    {
                        "work": contest.name,
                        "counted": counted,
                        "ours": ours,
                        "theirs": theirs,
                        "ratio": figure.median,
                        "low": figure.lowest,
                        "high": figure.highest,
                    }
                )
    return rows
