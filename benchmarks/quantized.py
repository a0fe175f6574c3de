"""Quantized weights, in turns with the peers that people use for them, on the very same files where those are GGUF.

    python -m benchmarks.quantized --peers ~/peers --shape qwen3-0.6b
    python -m benchmarks.quantized --peers ~/peers --shape qwen3-4b --engines "Ringline Q4_K_M" "llama.cpp Q4_K_M"

Weights are random (``benchmarks.random_gguf``). ``Ringline int8``, ``int4`` and bfloat16 take part where the shape is
one of ``benchmarks.shapes``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import random_gguf, shapes
from benchmarks.contestants import OURS, OURS_INT8, Peers
from benchmarks.limits import Gauge
from benchmarks.offline import Contest, contend, start_all
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.roofline import ModelCost
from benchmarks.work import Work
from benchmarks.worker import WorkerSpec

_MIXES = ("Q4_0", "Q4_K_M")
_INT8_INPUTS = ", 8-bit inputs"
_WORKS = {
    "batch 1": (Work(1, 128, 64), True),
    "batch 16": (Work(16, 128, 64), True),
    "batch 64": (Work(64, 128, 64), False),
    "prefill 1024": (Work(1, 1024, 1), False),
}
_MAX_MODEL_LEN = 2048


@dataclass(frozen=True, slots=True)
class Setup:
    """Which engines do which works on which files."""

    peers: Peers
    models: Path
    """Where files are made and kept."""
    shape: str
    mixes: Sequence[str] = _MIXES
    works: Sequence[str] = tuple(_WORKS)
    engines: Sequence[str] | None = None
    """Names of those that take part; None: all."""
    rounds: int = 3


def measure(setup: Setup) -> tuple[list[Row], list[Row]]:
    """Figures of every engine, and ratios within the rounds."""
    files = _files(setup)
    cost, gauge = ModelCost.of(next(iter(files.values()))), Gauge()
    kv_cache_bytes = _kv_cache_bytes(cost, [_WORKS[name][0] for name in setup.works])
    specs, wanted = _specs(setup, files, kv_cache_bytes), setup.engines
    specs = [spec for spec in specs if wanted is None or spec.name in wanted]
    weight_bytes = _weight_bytes(files, cost)
    ours = [spec.name for spec in specs if spec.name.startswith(OURS)]
    rows, ratios = [], []
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as logs:
        workers, started = start_all(specs, Path(logs), stack)
        print_table(started.rows, "starts")
        for name in setup.works:
            work, decode = _WORKS[name]
            contest = Contest(name, work, tuple(spec.name for spec in specs), decode)
            own, pairs = contend(contest, workers, cost, gauge, setup.rounds, ours, weight_bytes)
            print_table(own, name)
            print_table(pairs, f"{name}: ratios")
            rows += own
            ratios += pairs
    return rows, ratios


def main() -> None:
    """Run the command."""
    arguments = _parser().parse_args()
    rows, ratios = measure(
        Setup(
            Peers.at(arguments.peers),
            arguments.models,
            arguments.shape,
            arguments.mixes,
            arguments.works,
            arguments.engines,
            arguments.rounds,
        )
    )
    emit(arguments, "quantized", [*rows, *ratios])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=os.environ.get("PEERS"), help="the virtual environment that has llama_cpp")
    parser.add_argument("--shape", choices=random_gguf.SHAPES, default="qwen3-0.6b", help="(%(default)s)")
    parser.add_argument("--mixes", nargs="+", choices=random_gguf.MIXES, default=_MIXES, help="(%(default)s)")
    parser.add_argument("--works", nargs="+", choices=_WORKS, default=list(_WORKS), help="(all)")
    parser.add_argument("--engines", nargs="+", metavar="NAME", help="those that take part (all)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    shapes.model_options(parser, "")
    output_options(parser)
    return parser


def _files(setup: Setup) -> dict[str, Path]:
    """A GGUF file of each mix, made if missing."""
    directory = setup.models / "gguf"
    directory.mkdir(parents=True, exist_ok=True)
    files = {mix: directory / f"{setup.shape}.{mix}.gguf" for mix in setup.mixes}
    for mix, file in files.items():
        if not file.exists():
            print(f"making {file}", flush=True)
            random_gguf.write(random_gguf.SHAPES[setup.shape], mix, file)
    return files


def _kv_cache_bytes(cost: ModelCost, works: Sequence[Work]) -> int:
    """A quarter more than the works fill; half of it is for states, if layers keep any."""
    tokens = max(work.batch * (work.prompt + work.output) for work in works)
    blocks = max(tokens * 5 // 4, _MAX_MODEL_LEN) * cost.kv_bytes
    states = max(work.batch * 5 // 4 + 2 for work in works) * cost.state_bytes
    return 2 * max(blocks, states) if states else blocks


def _specs(setup: Setup, files: dict[str, Path], kv_cache_bytes: int) -> list[WorkerSpec]:
    """Ringline's first."""
    usual = {"max_model_len": _MAX_MODEL_LEN, "kv_cache_memory_bytes": kv_cache_bytes}
    found = []
    for mix, file in files.items():
        options = {"model": str(file), **usual}
        found.append(_here(f"{OURS} {mix}", options))
        found.append(_here(f"{OURS} {mix}{_INT8_INPUTS}", options | {"int8_activations": True}))
    if setup.shape in shapes.SHAPES:
        plain = {"model": str(shapes.find_model(setup.shape, setup.models)), **usual}
        found.append(_here(f"{OURS} int4", plain | {"quantization": "int4"}))
        found.append(_here(f"{OURS} int4{_INT8_INPUTS}", plain | {"quantization": "int4", "int8_activations": True}))
        found.append(_here(OURS_INT8, plain | {"quantization": "int8"}))
        found.append(_here(OURS, plain))
    peers = setup.peers
    if peers.interpreter is not None and peers.has("llama_cpp"):
        for mix, file in files.items():
            options = {"model": str(file)}
            found.append(WorkerSpec(f"llama.cpp {mix}", peers.interpreter, "llama_cpp_engine", options, {}))
    return found


def _here(name: str, options: dict[str, object]) -> WorkerSpec:
    return WorkerSpec(name, sys.executable, "ringline_engine", options, {})


def _weight_bytes(files: dict[str, Path], cost: ModelCost) -> dict[str, float]:
    """Bytes of a weight, by engine: those of the file, whoever reads it."""
    bytes_of = {OURS: 2.0, OURS_INT8: 1.0, f"{OURS} int4": 0.5625, f"{OURS} int4{_INT8_INPUTS}": 0.5625}
    for mix, file in files.items():
        size = file.stat().st_size / (cost.body + cost.head)
        bytes_of |= dict.fromkeys((f"{OURS} {mix}", f"{OURS} {mix}{_INT8_INPUTS}", f"llama.cpp {mix}"), size)
    return bytes_of


if __name__ == "__main__":
    main()
