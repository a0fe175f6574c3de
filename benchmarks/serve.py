"""The ring under load, from a streaming client that shares the machine with it.

    python -m benchmarks.serve --model tiny-llama                   # starts ``ringline serve``
    python -m benchmarks.serve --address 127.0.0.1:50051            # loads one that runs
    python -m benchmarks.serve --model qwen3-0.6b --cost            # the ring's cost, compared with offline

Each load is measured through the ring (text in, text and ids out) and directly at the engine (ids in, ids out).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.served import ring
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.served.ring import Ring, Traffic
from benchmarks.shapes import find_model, model_options
from benchmarks.work import Work
from benchmarks.worker import Worker, WorkerSpec

STREAMS = (1, 4, 16, 64, 256)
_LEAST_REQUESTS, _REQUESTS_PER_STREAM = 16, 3
_KV_CACHE_BYTES, _MOST_TOKENS = 3 << 29, 2048
"""KV cache and context length of both engines that ``--cost`` compares; the cache is allocated at the start."""


def traffic_of(streams: int, prompt: int, output: int) -> Traffic:
    """Traffic with enough requests that its beginning and end have little weight."""
    requests = max(_LEAST_REQUESTS, _REQUESTS_PER_STREAM * streams)
    return Traffic(requests, streams, prompt, output, warmup=min(streams, 16))


def row(server: str, streams: int, taken: Sequence[Mapping[str, Any]]) -> Row:
    """Medians of the client's measurements of one server over several rounds."""

    def median(figure: str, part: str) -> float | None:
        known = [r[figure][part] for r in taken if r[figure] is not None]
        return Figure.of(known).median if known else None

    tokens = Figure.of(r["output_tokens_per_second"] for r in taken)
    return {
        "server": server,
        "streams": streams,
        "tok/s": tokens.median,
        "tok/s low": tokens.lowest,
        "tok/s high": tokens.highest,
        "TTFT p50 ms": median("ttft_ms", "p50"),
        "TTFT p99 ms": median("ttft_ms", "p99"),
        "gap p50 ms": median("gap_ms", "p50"),
        "gap p99 ms": median("gap_ms", "p99"),
        "client CPU": Figure.of(r["client_cpu_share"] for r in taken).median,
    }


def measure(place: Ring, streams: Sequence[int], prompt: int, output: int, rounds: int) -> list[Row]:
    """Rows of the ring and, if its address is known, of its engine."""
    rows: list[Row] = []
    ways = {"Ringline": False} | ({"Ringline, engine alone": True} if place.engine else {})
    for count in streams:
        traffic = traffic_of(count, prompt, output)
        calls = {
            name: lambda _, engine=engine: ring.load(place, traffic, engine=engine)  # noqa: B023 - called at once
            for name, engine in ways.items()
        }
        rows += [row(name, count, taken) for name, taken in interleave(rounds, calls).items()]
    return rows


def ring_cost(model: Path, batch: int, prompt: int, output: int, rounds: int, logs: Path) -> Row:
    """Served and offline tokens per second of the same work, in turns."""
    options = {"model": str(model), "max_model_len": _MOST_TOKENS, "kv_cache_memory_bytes": _KV_CACHE_BYTES}
    spec = WorkerSpec("ringline offline", sys.executable, "ringline_engine", options, {})
    flags = ["--max-model-len", str(_MOST_TOKENS), "--kv-cache-memory-bytes", str(_KV_CACHE_BYTES)]
    with ring.serve(model, flags, logs) as served, Worker(spec, logs) as offline:
        traffic = Traffic(batch, batch, prompt, output, warmup=2)

        def offline_rate(number: int) -> float:
            return batch * output / offline.run(Work(batch, prompt, output, seed=number + 1)).seconds

        def served_rate(_: int) -> float:
            return float(ring.load(served, traffic)["output_tokens_per_second"])

        for rate in (offline_rate, served_rate):
            rate(-2)  # warm-up: compiles kernels
        taken = interleave(rounds, {"offline": offline_rate, "served": served_rate})
    share = ratio(taken["served"], taken["offline"])
    return {
        "batch": batch,
        "offline tok/s": Figure.of(taken["offline"]).median,
        "served tok/s": Figure.of(taken["served"]).median,
        "served / offline": share.median,
        "low": share.lowest,
        "high": share.highest,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "tiny-llama")
    output_options(parser)
    parser.add_argument("--address", help="of a processor that runs already; else one is started")
    parser.add_argument("--engine", help="of its engine, to load that alone, too")
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens (%(default)s)")
    parser.add_argument("--output", type=int, default=64, help="output tokens (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown (%(default)s)")
    parser.add_argument("--cost", action="store_true", help="served beside offline, at 16 sequences of 128 tokens")
    arguments = parser.parse_args()
    end_children_when_terminated()
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows: list[Row]
        if arguments.cost:
            model = find_model(arguments.model, arguments.models)
            rows = [ring_cost(model, 16, 128, arguments.output, arguments.rounds, logs)]
        else:
            place = Ring(arguments.address, arguments.engine, None) if arguments.address else None
            if place is None:
                place = stack.enter_context(ring.serve(find_model(arguments.model, arguments.models), [], logs))
            rows = measure(place, arguments.streams, arguments.prompt, arguments.output, arguments.rounds)
    print_table(rows, f"{arguments.address or arguments.model}, served")
    emit(arguments, "ring cost" if arguments.cost else "serve", rows)


if __name__ == "__main__":
    main()
