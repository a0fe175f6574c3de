"""Start-up time: from the start of a process to its first token, stage by stage, with weights on the local disk.

python -m benchmarks.startup --model qwen3-0.6b
python -m benchmarks.startup --model qwen3-0.6b --cold      # the weights are not in the page cache
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure
from benchmarks.served import ring
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.shapes import find_model, model_options
from benchmarks.worker import Worker, WorkerSpec


def forget(files: Iterable[Path]) -> None:
    """Have the system drop ``files`` from its page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def measure(spec: WorkerSpec, rounds: int, cold: list[Path], logs: Path) -> list[Row]:
    """Median seconds of each stage and of the whole start; files in ``cold`` are dropped from the page cache before."""
    stages: dict[str, list[float]] = {}
    for _ in range(rounds):
        forget(cold)
        with Worker(spec, logs) as worker:
            for name, seconds in (worker.stages | {"all": worker.start_seconds}).items():
                stages.setdefault(name, []).append(seconds)
    figures = {name: Figure.of(seconds) for name, seconds in stages.items()}
    return [{"stage": name, "seconds": f.median, "low": f.lowest, "high": f.highest} for name, f in figures.items()]


def ours(model: Path) -> WorkerSpec:
    """The engine alone, offline."""
    return WorkerSpec("ringline start", sys.executable, "ringline_engine", {"model": str(model)}, {})


def served(model: Path, rounds: int, cold: list[Path], logs: Path) -> Row:
    """``ringline serve`` to the first token at a client."""
    taken = []
    for _ in range(rounds):
        forget(cold)
        with ring.serve(model, [], logs) as place:
            taken.append(place.seconds_to_first_token or 0.0)
    figure = Figure.of(taken)
    return {"stage": "served, all", "seconds": figure.median, "low": figure.lowest, "high": figure.highest}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "qwen3-0.6b")
    output_options(parser)
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown (%(default)s)")
    parser.add_argument("--cold", action="store_true", help="drop the weights from the page cache before each start")
    arguments = parser.parse_args()
    model = find_model(arguments.model, arguments.models)
    cold = sorted(model.glob("*.safetensors")) if arguments.cold else []
    end_children_when_terminated()
    with tempfile.TemporaryDirectory() as logs:
        rows = measure(ours(model), arguments.rounds, cold, Path(logs))
        rows.append(served(model, arguments.rounds, cold, Path(logs)))
    print_table(rows, f"{arguments.model}, {'cold' if cold else 'warm'} page cache")
    emit(arguments, "startup", rows)


if __name__ == "__main__":
    main()
