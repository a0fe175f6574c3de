"""The gateway under load: beside the ring's own protocol, and beside vLLM + SMG from the same HTTP client; in turns.

    python -m benchmarks.http --peers /tmp/peers
    python -m benchmarks.http --peers /tmp/peers --streams 1 64 --rounds 5
    python -m benchmarks.http --peers /tmp/peers --overload 10     # 10 × the peak: what is refused, and what is left

Every client shares the machine with the server. A service's CPU time per token includes that of requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.contestants import Peers
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.serve import row, traffic_of
from benchmarks.served import peers as served_peers
from benchmarks.served import ring
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.served.ring import Ring, Traffic
from benchmarks.served.usage import cpu_seconds
from benchmarks.shapes import find_model, model_options

NATIVE, HTTP, THEIRS = "Ringline", "Ringline over HTTP", "vLLM + SMG"
LEAST_RATIO = 1.8
"""Wanted: tokens per second over HTTP, as a multiple of theirs."""
MOST_CPU = 60.0
"""Wanted: CPU time of the gateway per token, in µs."""
_KV_CACHE_BYTES = 1 << 30

Load = Callable[[Traffic], Mapping[str, Any]]


def _with_cpu(place: Ring, load: Load) -> Load:
    """The load, whose figures also have each service's CPU time per token in µs."""

    def measured(traffic: Traffic) -> Mapping[str, Any]:
        before = {name: cpu_seconds(pid) for name, pid in place.pids.items()}
        figures = load(traffic)
        tokens = (traffic.requests + traffic.warmup) * traffic.output
        cpu = {name: (cpu_seconds(pid) - before[name]) / tokens * 1e6 for name, pid in place.pids.items()}
        return {**figures, "cpu": cpu}

    return measured


def compare(loads: Mapping[str, Load], streams: int, prompt: int, output: int, rounds: int) -> tuple[list[Row], Row]:
    """A row for each server, and one of the ratios."""
    traffic = traffic_of(streams, prompt, output)
    for load in loads.values():  # warm-up: compiles kernels for these batch sizes
        load(Traffic(streams, streams, prompt, 8, warmup=0))
    calls = {name: lambda _, load=load: load(traffic) for name, load in loads.items()}
    taken = interleave(rounds, calls)
    rows: list[Row] = []
    for name, measured in taken.items():
        cpu = {
            f"{service} µs/token": Figure.of(one["cpu"][service] for one in measured).median
            for service in measured[0].get("cpu", ())
        }
        rows.append({**row(name, streams, measured), **cpu})
    speeds = {name: [one["output_tokens_per_second"] for one in measured] for name, measured in taken.items()}
    ratios: dict[str, Any] = {"streams": streams}
    for name in (NATIVE, THEIRS):
        if name in speeds and HTTP in speeds:
            found = ratio(speeds[HTTP], speeds[name])
            ratios |= {f"HTTP / {name}": found.median, f"{name}, low": found.lowest, f"{name}, high": found.highest}
    return rows, ratios


def overload(place: Ring, interpreter: str, model: str, arguments: argparse.Namespace) -> Row:
    """The gateway at a multiple of the peak, in turns with the peak."""
    assert place.http is not None
    command = [interpreter, "-m", "benchmarks.served.http_flood", place.http, model, "--streams=128"]
    command += [f"--prompt={arguments.prompt}", f"--output={arguments.output}", f"--rounds={arguments.rounds}"]
    command += [f"--times={arguments.overload}", "--seconds=15", "--settle=5"]
    found: dict[str, Any] = json.loads(ring.run(command))
    shares = found.pop("of the peak")
    return {**found, "of the peak": Figure.of(shares).median, "by round": " ".join(f"{share:.2f}" for share in shares)}


def main() -> None:
    """Compare, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "tiny-llama")
    output_options(parser)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64], help="(%(default)s)")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens (%(default)s)")
    parser.add_argument("--output", type=int, default=64, help="output tokens (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown (%(default)s)")
    parser.add_argument(
        "--peers", metavar="DIRECTORY", required=True, help="virtual environment with aiohttp, vLLM and SMG"
    )
    parser.add_argument("--alone", action="store_true", help="Ringline only")
    parser.add_argument("--overload", type=float, metavar="TIMES", help="the peak is offered, instead of comparing")
    arguments = parser.parse_args()
    end_children_when_terminated()
    model, peers = find_model(arguments.model, arguments.models), Peers.at(arguments.peers)
    assert peers.interpreter is not None
    interpreter = peers.interpreter
    with contextlib.ExitStack() as stack:
        rows: list[Row]
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        flags = ["--kv-cache-memory-bytes", str(_KV_CACHE_BYTES), "--http-port", "0"]
        place = stack.enter_context(ring.serve(model, flags, logs))
        if arguments.overload is not None:
            rows = [overload(place, interpreter, model.name, arguments)]
            print_table(
                rows, f"{arguments.overload:g} × the peak over HTTP; wanted: 0.9 of the peak, and no other answers"
            )
            emit(arguments, "http overload", rows)
            return
        loads: dict[str, Load] = {
            NATIVE: _with_cpu(place, lambda traffic: ring.load(place, traffic)),
            HTTP: _with_cpu(place, lambda traffic: ring.load_http(place, interpreter, model.name, traffic)),
        }
        if not arguments.alone:
            other = stack.enter_context(served_peers.serve(interpreter, model, peers.vllm_environment, logs))
            loads[THEIRS] = lambda traffic: served_peers.load(other, traffic)
        rows = []
        ratios: list[Row] = []
        for streams in arguments.streams:
            measured, found = compare(loads, streams, arguments.prompt, arguments.output, arguments.rounds)
            print_table(measured, f"{streams} streams")
            print_table([found])
            rows += measured
            ratios.append(found)
    emit(arguments, "http", rows + ratios)


if __name__ == "__main__":
    main()
