"""Texts per second of embedding models, in turns with sentence-transformers, ONNX Runtime, vLLM and llama.cpp.

    python -m benchmarks.embeddings --peers ~/peers
    python -m benchmarks.embeddings --peers ~/peers --shapes minilm --tokens 32 --rounds 3
    python -m benchmarks.embeddings --served            # over HTTP, beside the engine alone

The shapes of all-MiniLM-L6-v2 and bge-base, with random weights, in float32. Every engine gets the same texts and must
return the same vectors. Time includes tokenization, pooling and normalization.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contestants import LLAMA_CPP, OURS, VLLM, Peers
from benchmarks.embedding_shapes import SHAPES, find_embedder
from benchmarks.offline import start_all
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.served.embeddings import served_rows
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.work import Outcome, Work
from benchmarks.worker import Worker, WorkerSpec

SENTENCE_TRANSFORMERS, ONNX_RUNTIME = "sentence-transformers", "ONNX Runtime"
OURS_BF16, TORCH_BF16 = f"{OURS} bf16", f"{SENTENCE_TRANSFORMERS} bf16"
OURS_INT8 = f"{OURS} int8"
RATIO = "Ringline / it"
"""The column of ratios."""
TOKENS, BATCHES = (32, 256), (1, 64)
_ROOT = Path(__file__).resolve().parents[1]
_ROUND_TOKENS = 4096
"""Of a round at least; a batch of one is repeated."""
_LEAST_COSINE = 0.999
"""Of an engine's vector with ours, in float32; types of fewer bits may differ by ten times as much."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is measured."""

    models: Path
    """Where they are made and kept."""
    shapes: Sequence[str] = tuple(SHAPES)
    tokens: Sequence[int] = TOKENS
    batches: Sequence[int] = BATCHES
    engines: Sequence[str] | None = None
    """None: all."""


def specs(model: Path, peers: Peers) -> list[WorkerSpec]:
    """All engines that can embed with ``model`` here, ours first."""
    ours, path = "ringline_embedder", str(model)
    found = [
        WorkerSpec(OURS, sys.executable, ours, {"model": path, "dtype": "float32"}, {}),
        WorkerSpec(OURS_BF16, sys.executable, ours, {"model": path, "dtype": "bfloat16"}, {}),
        WorkerSpec(OURS_INT8, sys.executable, ours, {"model": path, "dtype": "float32", "quantization": "int8"}, {}),
    ]
    python = peers.interpreter
    if python is None:
        return found
    if peers.has("sentence_transformers"):
        for name, dtype in ((SENTENCE_TRANSFORMERS, "float32"), (TORCH_BF16, "bfloat16")):
            options = {"model": path, "dtype": dtype}
            found.append(WorkerSpec(name, python, "sentence_transformers_embedder", options, {}))
    if peers.has("onnxruntime") and peers.has("onnx"):
        file = _converted(python, "benchmarks.workers.onnxruntime_embedder", model, ".onnx")
        found.append(WorkerSpec(ONNX_RUNTIME, python, "onnxruntime_embedder", {"model": path, "file": str(file)}, {}))
    if peers.has("vllm"):
        found.append(WorkerSpec(VLLM, python, "vllm_embedder", {"model": path}, peers.vllm_environment))
    if peers.has("llama_cpp") and peers.has("gguf"):
        file = _converted(python, "benchmarks.embedding_shapes", model, ".gguf")
        found.append(WorkerSpec(LLAMA_CPP, python, "llama_cpp_embedder", {"model": str(file)}, {}))
    return found


def _converted(interpreter: str, module: str, model: Path, suffix: str) -> Path:
    """The model in another format, beside its directory, written by ``module`` if missing."""
    file = model.with_name(model.name + suffix)
    if not file.exists():
        draft = file.with_name(f"draft-{file.name}")
        environment = os.environ | {"PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"}
        subprocess.run([interpreter, "-m", module, str(model), str(draft)], check=True, env=environment, cwd=_ROOT)
        draft.replace(file)
    return file


def measure(choice: Choice, several: Sequence[Peers], rounds: int) -> list[Row]:
    """A row for each shape, work and engine. ``several``: environments that have peers."""
    rows: list[Row] = []
    for shape in choice.shapes:
        model = find_embedder(shape, choice.models)
        found = {spec.name: spec for peers in several for spec in specs(model, peers)}
        wanted = [spec for name, spec in found.items() if choice.engines is None or name in choice.engines]
        with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as logs:
            workers, started = start_all(wanted, Path(logs), stack)
            print_table(started.rows, shape)
            for tokens in choice.tokens:
                for batch in choice.batches:
                    own = _contest(shape, tokens, batch, workers, rounds)
                    print_table(own, f"{shape}, {tokens} tokens, {batch} at a time")
                    rows += own
    return rows


def measure_served(choice: Choice, rounds: int) -> list[Row]:
    """The same over HTTP, beside the engine alone."""
    models = {shape: find_embedder(shape, choice.models) for shape in choice.shapes}
    return served_rows(models, choice.tokens, choice.batches, rounds)


def _contest(shape: str, tokens: int, batch: int, workers: Mapping[str, Worker], rounds: int) -> list[Row]:
    calls = max(1, _ROUND_TOKENS // (tokens * batch))
    work = Work(batch, tokens, 0, calls=calls)

    def taker(worker: Worker) -> Callable[[int], Outcome]:
        return lambda number: worker.run(Work(batch, tokens, 0, seed=number + 1, calls=calls))

    compare_vectors({name: worker.run(work).vector for name, worker in workers.items()})  # and warms up
    taken = interleave(rounds, {name: taker(worker) for name, worker in workers.items()})
    texts = batch * calls
    rates = {name: [texts / outcome.seconds for outcome in outcomes] for name, outcomes in taken.items()}
    return [_row(shape, tokens, batch, name, rates) for name in rates]


def compare_vectors(vectors: Mapping[str, Sequence[float]]) -> None:
    """Raises ``SystemExit`` if an engine computes something else than ours."""
    ours = vectors.get(OURS)
    for name, vector in vectors.items():
        if ours is None:
            return
        apart = 1.0 - math.fsum(a * b for a, b in zip(ours, vector, strict=True))
        if apart > (1.0 - _LEAST_COSINE) * (10.0 if name in (OURS_BF16, TORCH_BF16, OURS_INT8) else 1.0):
            raise SystemExit(f"the vectors of {name} are not those of {OURS}: their cosine is {1.0 - apart:.4f}")


def _row(shape: str, tokens: int, batch: int, engine: str, rates: Mapping[str, Sequence[float]]) -> Row:
    texts = Figure.of(rates[engine]).median
    row = {"model": shape, "tokens": tokens, "at a time": batch, "engine": engine, "texts/s": texts}
    row |= {RATIO: None, "low": None, "high": None}
    ours = OURS if engine != TORCH_BF16 else OURS_BF16
    if ours in rates and engine != ours:
        figure = ratio(rates[ours], rates[engine])
        row |= {RATIO: figure.median, "low": figure.lowest, "high": figure.highest}
    return row


def main() -> None:
    """Run the command."""
    arguments = _parser().parse_args()
    end_children_when_terminated()
    several = [Peers.at(each) for each in arguments.peers] or [Peers.at(None)]
    names = ("models", "shapes", "tokens", "batches", "engines")
    choice = Choice(**{name: getattr(arguments, name) for name in names})
    served = arguments.served
    rows = measure_served(choice, arguments.rounds) if served else measure(choice, several, arguments.rounds)
    print_table(rows, "embeddings")
    emit(arguments, "embeddings", rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringline-benchmarks"
    given = os.environ.get("PEERS")
    parser.add_argument("--peers", nargs="*", default=[given] if given else [], help="environments that have peers")
    parser.add_argument("--models", type=Path, default=cache, metavar="DIR", help="where models are kept (%(default)s)")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="(all)")
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS), help="of a text (%(default)s)")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), help="at a time (%(default)s)")
    parser.add_argument("--engines", nargs="+", help="that take part; default: all that are there")
    parser.add_argument("--rounds", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--served", action="store_true", help="over HTTP, beside the engine alone")
    output_options(parser)
    return parser


if __name__ == "__main__":
    main()
