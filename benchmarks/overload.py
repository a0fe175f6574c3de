"""Overload: goodput, latency of refusals, and memory.

    python -m benchmarks.overload --minutes 5 --plot overload.png   # 10 × the peak, some readers that never read
    python -m benchmarks.overload --minutes 2 --tenants             # the effect of one tenant's flood on another
    python -m benchmarks.overload --model qwen3-0.6b --streams 64 --max-num-seqs 64 --max-model-len 2048

Starts ``ringline serve``, finds the peak (the highest goodput of closed loops), and then sends an open loop at a
multiple of that rate. Both take turns, because a machine's speed changes. Unknown options go to ``ringline serve``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.plots import plot_memory
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.served import ring
from benchmarks.served.isolation import SHARE, measure_isolation
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.served.tenant_load import (
    RequestShape,
    Tally,
    TenantLoad,
    background,
    figure_ms,
    merged,
    send_without_reading,
)
from benchmarks.served.usage import Watch, cpu_seconds
from benchmarks.shapes import find_model, model_options
from services.cli.supervise.runtime_directory import StackState, running_stacks

SERVICES = ("processor", "engine", "detokenizer")
_FLAGS = ("--kv-cache-memory-bytes", "256MiB")
"""A small KV cache, which is soon full: memory is taken as the cache fills, so a large one would grow all the time."""
_UNREAD_SESSIONS = 4
_UNREAD_SHARE = 0.02
"""Share of the requests sent whose answers are never read."""
_UNREAD_LIFE = 45.0
"""Seconds that a Session stays unread; longer than the processor's ``--stall-timeout``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a measurement."""

    address: str
    stack: StackState
    shape: RequestShape
    streams: tuple[int, ...]
    times: float
    rounds: int
    """Number of turns of each compared load."""
    settle: float
    """Seconds before counting begins."""
    count: float
    """Seconds of each measurement of the peak."""
    seconds: float
    """Seconds of the overload, or with each neighbor, over all rounds."""

    def watch(self) -> Watch:
        return Watch({name: self.stack.services[name].pid for name in SERVICES})

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of the ring's processes and this one, so far."""
        used = {name: cpu_seconds(self.stack.services[name].pid) for name in SERVICES}
        return {**used, "client": time.process_time()}


async def at_peak(plan: Plan, streams: int) -> tuple[Tally, float]:
    """Measure a closed loop of ``streams`` requests; also returns the CPU share of this process."""
    async with TenantLoad(plan.address, plan.shape) as load:
        cpu = time.process_time()
        async with background(load.run_closed_loop(streams)):
            await asyncio.sleep(plan.settle)
            load.fresh_tally()
            await asyncio.sleep(plan.count)
            tally = load.fresh_tally()
        return tally, (time.process_time() - cpu) / (plan.settle + plan.count)


async def peak_of(plan: Plan) -> tuple[int, float, list[Row]]:
    """Return the concurrency with the highest goodput, its requests per second, and the rows of all concurrencies."""
    rows: list[Row] = []
    for streams in plan.streams:
        tally, share = await at_peak(plan, streams)
        rows.append(
            {
                "streams": streams,
                "tok/s": tally.goodput,
                "requests/s": tally.good / tally.seconds,
                "TPOT p50 ms": figure_ms(tally.tpot, "p50"),
                "client CPU": share,
            }
        )
    best = max(rows, key=lambda row: float(row["tok/s"]))
    return int(best["streams"]), float(best["requests/s"]), rows


@dataclass(slots=True)
class Turns:
    """Measurements of the peak and the overload, in turns."""

    peaks: list[Tally] = field(default_factory=list)
    loads: list[Tally] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds of each process, including this one, under the overload."""
    seconds: float = 0.0
    """Seconds of the overload, including those before counting begins."""

    @property
    def shares(self) -> list[float]:
        """Goodput of each overload, as a share of the mean of the peaks before and after it."""
        around = zip(self.loads, self.peaks, self.peaks[1:], strict=False)
        return [2 * load.goodput / (before.goodput + after.goodput) for load, before, after in around]


async def overload(plan: Plan, streams: int, requests_per_second: float) -> tuple[Turns, Watch]:
    """Alternate between the peak load and ``times`` that load, with some clients that never read."""
    turns = Turns()
    async with plan.watch() as watch:
        for _ in range(plan.rounds):
            turns.peaks.append((await at_peak(plan, streams))[0])
            await _at_overload(plan, plan.times * requests_per_second, turns)
        turns.peaks.append((await at_peak(plan, streams))[0])
    return turns, watch


async def _at_overload(plan: Plan, rate: float, turns: Turns) -> None:
    unread = [
        send_without_reading(plan.address, plan.shape, rate * _UNREAD_SHARE / _UNREAD_SESSIONS, _UNREAD_LIFE)
        for _ in range(_UNREAD_SESSIONS)
    ]
    cpu, begun = plan.cpu_seconds(), time.perf_counter()
    async with (
        TenantLoad(plan.address, plan.shape) as load,
        background(load.run_open_loop(rate * (1 - _UNREAD_SHARE)), *unread),
    ):
        await asyncio.sleep(plan.settle)
        load.fresh_tally()
        await asyncio.sleep(plan.seconds / plan.rounds - plan.settle)
        turns.loads.append(load.fresh_tally())
        turns.seconds += time.perf_counter() - begun
        for name, seconds in plan.cpu_seconds().items():
            turns.cpu[name] = turns.cpu.get(name, 0.0) + seconds - cpu[name]


def overload_rows(turns: Turns, watch: Watch) -> tuple[Row, list[Row]]:
    """Return the figures of the overload, and of each process."""
    tally = merged(turns.loads)
    load: Row = {
        "goodput tok/s": tally.goodput,
        "peak tok/s": merged(turns.peaks).goodput,
        "of the peak": sum(turns.shares) / len(turns.shares),
        "by round": " ".join(f"{share:.2f}" for share in turns.shares),
        "offered/s": (tally.good + tally.refused + tally.failures.total()) / tally.seconds,
        "complete/s": tally.good / tally.seconds,
        "refused/s": tally.refused / tally.seconds,
        "failed": tally.failures.total(),
        "refusal p50 ms": figure_ms(tally.refusal, "p50"),
        "refusal p99 ms": figure_ms(tally.refusal, "p99"),
        "TTFT p50 ms": figure_ms(tally.ttft, "p50"),
        "TPOT p50 ms": figure_ms(tally.tpot, "p50"),
        "client CPU": turns.cpu["client"] / turns.seconds,
    }
    return load, [
        {
            "service": name,
            "MiB at 20 %": seen[len(seen) // 5] / 2**20,
            "MiB at the end": seen[-1] / 2**20,
            "most MiB": max(seen) / 2**20,
            "CPU": turns.cpu[name] / turns.seconds,
        }
        for name, seen in watch.resident.items()
    ]


@contextlib.contextmanager
def served(arguments: argparse.Namespace, flags: Sequence[str]) -> Iterator[tuple[str, StackState]]:
    """Serve while the body runs; yields the processor's address and the stack."""
    with (
        tempfile.TemporaryDirectory() as logs,
        ring.serve(find_model(arguments.model, arguments.models), (*_FLAGS, *flags), Path(logs)) as place,
    ):
        [stack] = [one for one in running_stacks() if one.services["processor"].address == place.processor]
        yield place.processor, stack


async def measure(plan: Plan, arguments: argparse.Namespace) -> list[Row]:
    """Measure and print; returns the rows of the report."""
    streams, requests, levels = await peak_of(plan)
    print_table(levels, f"{arguments.model}: the peak")
    if arguments.tenants:
        seconds = plan.seconds / plan.rounds
        rows = await measure_isolation(
            plan.address, plan.shape, requests, plan.times, plan.rounds, plan.settle, seconds
        )
        print_table(rows, f"a tenant with {SHARE:.0%} of the peak, beside another")
        calm, *flooded = (float(row["TTFT p99 ms"]) for row in rows[1:])
        for row, ttft in zip(rows[2:], flooded, strict=True):
            print(
                f"TTFT p99 beside {row['beside']} / beside {rows[1]['beside']}: {ttft / calm:.2f} (target: at most 2)"
            )
        return rows
    turns, watch = await overload(plan, streams, requests)
    load, services = overload_rows(turns, watch)
    print_table([load], f"{arguments.times:g} × the peak for {plan.seconds:g} s")
    print_table(services)
    for problem, count in merged(turns.loads).failures.most_common(3):
        print(f"failed {count} ×: {problem}")
    if arguments.plot is not None:
        plot_memory(watch.times, watch.resident, f"{arguments.times:g} × the peak", arguments.plot)
    series: Row = {"seconds": watch.times, "resident bytes": watch.resident}
    return [load, *services, series]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "tiny-llama")
    output_options(parser)
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="of the overload, or beside each neighbour (%(default)s)"
    )
    parser.add_argument("--times", type=float, default=10.0, help="the peak is offered (%(default)s)")
    parser.add_argument("--tenants", action="store_true", help="two tenants instead, one of which floods")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[128, 256, 320], help="at which the peak is looked for"
    )
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens (%(default)s)")
    parser.add_argument("--output", type=int, default=64, help="output tokens, on average (%(default)s)")
    parser.add_argument("--timeout", type=float, help="of each request, in seconds")
    parser.add_argument("--rounds", type=int, default=5, help="turns that are taken (%(default)s)")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds that are not counted (%(default)s)")
    parser.add_argument("--count", type=float, default=8.0, help="seconds of each load of the peak (%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw resident memory over time")
    arguments, flags = parser.parse_known_args()
    end_children_when_terminated()
    with served(arguments, flags) as (address, stack):
        plan = Plan(
            address,
            stack,
            RequestShape(arguments.prompt, arguments.output, arguments.timeout),
            tuple(arguments.streams),
            arguments.times,
            arguments.rounds,
            arguments.settle,
            arguments.count,
            60 * arguments.minutes,
        )
        rows = asyncio.run(measure(plan, arguments))
    emit(arguments, "tenants" if arguments.tenants else "overload", rows)


if __name__ == "__main__":
    main()
