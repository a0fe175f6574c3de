"""More than the ring can do: what is still done, how fast the rest is refused, and what memory that takes.

    python -m benchmarks.overload --minutes 5 --plot overload.png   # 10 × the peak, some readers that never read
    python -m benchmarks.overload --tenants                         # one tenant floods: what another notices

Starts ``ringline serve``, finds the peak (the most tokens per second of answers that were complete, with always as many
requests under way), and then offers many times as much at random times, whatever becomes of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plots import plot_memory
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.served import ring
from benchmarks.served.flood import Flood, Shape, Tally, come_and_go, never_read
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.served.usage import Watch
from benchmarks.shapes import find_model, model_options
from services.bench.measure import Spread
from services.runtime.run_dir import StackState, running_stacks

SERVICES = ("processor", "engine", "detokenizer")
_FLAGS = ("--kv-cache-memory-bytes", "256MiB")
"""A KV cache whose memory is soon all in use: it is taken as it is used, and else grows throughout."""
_DEAF_SESSIONS = 4
_DEAF_SHARE = 0.02
"""Of the requests that are offered, those of readers that never read."""
_DEAF_LIFE = 45.0
"""Seconds; longer than the processor's ``--stall-timeout``."""
_OTHER_SHARE, _NEIGHBOUR_SHARE = 0.1, 0.7
"""Of the peak: what the tenant offers that does not flood, and the other one before it does."""
_FLOOD_LIFE = 2.0
"""Seconds of each of the floods that begin."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with a ring."""

    address: str
    stack: StackState
    shape: Shape
    streams: tuple[int, ...]
    times: float
    settle: float
    """Seconds before anything is counted."""
    count: float
    """Seconds of each measurement but the long one."""
    seconds: float
    """Of the long one."""

    def watch(self) -> Watch:
        """The processes of the ring."""
        return Watch({name: self.stack.services[name].pid for name in SERVICES})


@contextlib.asynccontextmanager
async def background(*work: object) -> AsyncIterator[None]:
    """Run coroutines while the body runs; what one of them raises is raised at the end."""
    tasks = [asyncio.ensure_future(one) for one in work]  # type: ignore[call-overload]
    try:
        yield
    finally:
        failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failed and failed[0] is not None:
        raise failed[0]


async def peak_of(plan: Plan) -> tuple[float, float, list[Row]]:
    """Tokens and requests per second at the best of several loads, and all of them."""
    rows: list[Row] = []
    for streams in plan.streams:
        async with Flood(plan.address, plan.shape) as flood:
            cpu = time.process_time()
            async with background(flood.keep(streams)):
                await asyncio.sleep(plan.settle)
                flood.fresh_tally()
                await asyncio.sleep(plan.count)
                tally = flood.fresh_tally()
            rows.append(
                {
                    "streams": streams,
                    "tok/s": tally.good_tokens / tally.seconds,
                    "requests/s": tally.good / tally.seconds,
                    "TPOT p50 ms": _part(tally.tpot, "p50"),
                    "client CPU": (time.process_time() - cpu) / (plan.settle + plan.count),
                }
            )
    best = max(rows, key=lambda row: float(row["tok/s"]))
    return float(best["tok/s"]), float(best["requests/s"]), rows


async def overload(plan: Plan, requests_per_second: float) -> tuple[Tally, Watch, float]:
    """``times`` the load, with readers that never read; also the CPU share of this process."""
    rate = plan.times * requests_per_second
    deaf = [
        never_read(plan.address, plan.shape, rate * _DEAF_SHARE / _DEAF_SESSIONS, _DEAF_LIFE)
        for _ in range(_DEAF_SESSIONS)
    ]
    async with (
        Flood(plan.address, plan.shape) as flood,
        plan.watch() as watch,
        background(flood.offer(rate * (1 - _DEAF_SHARE)), *deaf),
    ):
        await asyncio.sleep(plan.settle)
        flood.fresh_tally()
        cpu = time.process_time()
        await asyncio.sleep(plan.seconds)
        tally = flood.fresh_tally()
        share = (time.process_time() - cpu) / tally.seconds
    return tally, watch, share


async def tenants(plan: Plan, requests_per_second: float) -> list[Row]:
    """What one tenant notices of another: none, one that behaves, one that floods, one that does so anew."""
    flood_rate = plan.times * requests_per_second
    neighbours = {
        "nobody": None,
        f"{_NEIGHBOUR_SHARE:.0%} of the peak": lambda: _offer(plan, _NEIGHBOUR_SHARE * requests_per_second),
        "a flood": lambda: _offer(plan, flood_rate),
        "floods that begin": lambda: come_and_go(plan.address, plan.shape, "other", flood_rate, _FLOOD_LIFE),
    }
    rows: list[Row] = []
    for name, neighbour in neighbours.items():
        async with Flood(plan.address, plan.shape, "one") as one:
            work = [one.offer(_OTHER_SHARE * requests_per_second)]
            if neighbour is not None:
                work.append(neighbour())
            cpu = time.process_time()
            async with background(*work):
                await asyncio.sleep(plan.settle)
                one.fresh_tally()
                await asyncio.sleep(plan.seconds)
                tally = one.fresh_tally()
            rows.append(
                {
                    "beside": name,
                    "TTFT p50 ms": _part(tally.ttft, "p50"),
                    "TTFT p99 ms": _part(tally.ttft, "p99"),
                    "TPOT p50 ms": _part(tally.tpot, "p50"),
                    "complete": tally.good,
                    "refused": tally.refused,
                    "failed": tally.others.total(),
                    "client CPU": (time.process_time() - cpu) / (plan.settle + plan.seconds),
                }
            )
    return rows


async def _offer(plan: Plan, rate: float) -> None:
    async with Flood(plan.address, plan.shape, "other") as other:
        await other.offer(rate)


def overload_rows(tally: Tally, watch: Watch, share: float, peak: float) -> tuple[Row, list[Row]]:
    """The figures of the load, and of each process."""
    goodput = tally.good_tokens / tally.seconds
    load: Row = {
        "goodput tok/s": goodput,
        "peak tok/s": peak,
        "of the peak": goodput / peak,
        "offered/s": (tally.good + tally.refused + tally.others.total()) / tally.seconds,
        "complete/s": tally.good / tally.seconds,
        "refused/s": tally.refused / tally.seconds,
        "failed": tally.others.total(),
        "refusal p50 ms": _part(tally.refusal, "p50"),
        "refusal p99 ms": _part(tally.refusal, "p99"),
        "TTFT p50 ms": _part(tally.ttft, "p50"),
        "TPOT p50 ms": _part(tally.tpot, "p50"),
        "client CPU": share,
    }
    return load, [
        {
            "service": name,
            "MiB at 20 %": seen[len(seen) // 5] / 2**20,
            "MiB at the end": seen[-1] / 2**20,
            "most MiB": max(seen) / 2**20,
            "CPU": watch.cpu_share[name],
        }
        for name, seen in watch.resident.items()
    ]


def _part(seconds: array[float], part: str) -> float | None:
    spread = Spread.of(seconds)
    return None if spread is None else float(getattr(spread, part))


@contextlib.contextmanager
def served(arguments: argparse.Namespace) -> Iterator[tuple[str, StackState]]:
    """A ring of its own, and where its processes are."""
    with (
        tempfile.TemporaryDirectory() as logs,
        ring.serve(find_model(arguments.model, arguments.models), _FLAGS, Path(logs)) as place,
    ):
        [stack] = [one for one in running_stacks() if one.services["processor"].address == place.processor]
        yield place.processor, stack


async def measure(plan: Plan, arguments: argparse.Namespace) -> list[Row]:
    """Measure and print what was asked for."""
    peak, requests, levels = await peak_of(plan)
    print_table(levels, f"{arguments.model}: the peak")
    if arguments.tenants:
        rows = await tenants(plan, requests)
        print_table(rows, f"a tenant with {_OTHER_SHARE:.0%} of the peak, beside another")
        calm, *flooded = (float(row["TTFT p99 ms"]) for row in rows[1:])
        for row, ttft in zip(rows[2:], flooded, strict=True):
            print(
                f"TTFT p99 beside {row['beside']} / beside {rows[1]['beside']}: {ttft / calm:.2f} (target: at most 2)"
            )
        return rows
    tally, watch, share = await overload(plan, requests)
    load, services = overload_rows(tally, watch, share, peak)
    print_table([load], f"{arguments.times:g} × the peak for {plan.seconds:g} s")
    print_table(services)
    for problem, count in tally.others.most_common(3):
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
    parser.add_argument("--minutes", type=float, default=5.0, help="of the overload (%(default)s)")
    parser.add_argument("--times", type=float, default=10.0, help="the peak is offered (%(default)s)")
    parser.add_argument("--tenants", action="store_true", help="two tenants instead, one of which floods")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[128, 256, 320], help="at which the peak is looked for"
    )
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens (%(default)s)")
    parser.add_argument("--output", type=int, default=64, help="output tokens, on average (%(default)s)")
    parser.add_argument("--timeout", type=float, help="of each request, in seconds")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds that are not counted (%(default)s)")
    parser.add_argument("--count", type=float, default=15.0, help="seconds of each load of the peak (%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw resident memory over time")
    arguments = parser.parse_args()
    end_children_when_terminated()
    with served(arguments) as (address, stack):
        plan = Plan(
            address,
            stack,
            Shape(arguments.prompt, arguments.output, arguments.timeout),
            tuple(arguments.streams),
            arguments.times,
            arguments.settle,
            arguments.count,
            60 * arguments.minutes,
        )
        rows = asyncio.run(measure(plan, arguments))
    emit(arguments, "tenants" if arguments.tenants else "overload", rows)


if __name__ == "__main__":
    main()
