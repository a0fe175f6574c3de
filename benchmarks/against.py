"""Compares another commit of this repository with the tree as it is: the answers, and their speed.

    python -m benchmarks.against HEAD~3 bits             # exits with 1 and the first difference if bits differ
    python -m benchmarks.against HEAD~3 offline served   # ratios of speeds, and the commit's ratio to itself

The commit is checked out once, with its native kernels, below ``--models``. Each tree's engine and services run from
that tree, in separate processes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import bits
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.serve import traffic_of
from benchmarks.served import ring
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.shapes import find_model, model_options
from benchmarks.work import Work
from benchmarks.worker import Worker, WorkerSpec

_ROOT = Path(__file__).resolve().parents[1]
_MODELS = {"offline": "qwen3-0.6b", "served": "tiny-llama"}
"""The model of each part: one bound by reading weights, and one bound by overhead."""
_WORKS = {"decode 1": Work(1, 32, 48), "decode 16": Work(16, 32, 32), "prefill 1024": Work(1, 1024, 1)}
_STREAMS = (1, 16, 64)
_MOST_TOKENS, _KV_CACHE_BYTES = 2048, 1 << 30


def checked_out(ref: str, below: Path) -> Path:
    """The tree of a commit, branch or tag, in a directory that is created the first time."""
    found = subprocess.run(["git", "rev-parse", "--verify", f"{ref}^{{commit}}"], cwd=_ROOT, capture_output=True)
    if found.returncode:
        raise SystemExit(f"{ref} is no commit of this repository")
    commit = found.stdout.decode().strip()
    if not (tree := below / commit).exists():
        below.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=_ROOT, check=True, capture_output=True).stdout
        with tempfile.TemporaryDirectory(dir=below) as draft, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(draft, filter="data")
            _build_kernels(Path(draft))
            Path(draft).rename(tree)
    return tree


def _build_kernels(tree: Path) -> None:
    """Compile the native kernels of ``tree`` if they are missing or older than their sources."""
    [builder] = (tree / "engine_core").rglob("kernels/build.py")
    libraries = list(builder.parent.glob("*.so"))
    newest = max(path.stat().st_mtime for path in (builder, *(builder.parent / "cpu").iterdir()))
    if not libraries or libraries[0].stat().st_mtime < newest:
        print(f"building the native kernels of {tree}", flush=True)
        subprocess.run([sys.executable, builder], cwd=tree, check=True)


def _environment(tree: Path) -> dict[str, str]:
    """Environment variables for processes that import everything from ``tree``, whatever their working directory."""
    return {"PYTHONPATH": f"{tree}:{tree / 'clients' / 'python'}", "PYTHONSAFEPATH": "1"}


def offline(trees: Mapping[str, Path], model: Path, rounds: int, logs: Path) -> list[Row]:
    """Decoding and prefill of the engines alone; each is suspended while another has its turn."""
    options = {"model": str(model), "max_model_len": _MOST_TOKENS, "kv_cache_memory_bytes": _KV_CACHE_BYTES}
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                Worker(WorkerSpec(name, sys.executable, "ringline_engine", options, _environment(tree)), logs)
            )
            for name, tree in trees.items()
        }
        for name, work in _WORKS.items():
            rows += _rows(name, {tree: partial(_rate, worker, work) for tree, worker in workers.items()}, rounds)
    return rows


def _rate(worker: Worker, work: Work, number: int) -> float:
    """Tokens per second: of the prompt if ``work`` has one output token, else of decoding, with prefill subtracted."""
    seed = 10_000 * work.batch * work.prompt + 2 * number  # no two prompts have a common prefix
    whole = worker.run(replace(work, seed=seed)).seconds
    if work.output == 1:
        return work.batch * work.prompt / whole
    prefill = worker.run(replace(work, output=1, seed=seed + 1)).seconds
    return work.batch * (work.output - 1) / (whole - prefill)


def served(trees: Mapping[str, Path], model: Path, rounds: int, logs: Path) -> list[Row]:
    """The three services of each tree under the load of one client; the trees not under load are idle."""
    flags = ["--max-model-len", str(_MOST_TOKENS), "--kv-cache-memory-bytes", str(_KV_CACHE_BYTES)]
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        rings = {
            name: stack.enter_context(ring.serve(model, flags, logs / name, _environment(tree)))
            for name, tree in trees.items()
        }
        for streams in _STREAMS:
            traffic = traffic_of(streams, 64, 64)
            rates = {name: partial(_served_rate, place, traffic) for name, place in rings.items()}
            rows += _rows(f"{streams} streams", rates, rounds)
    return rows


def _served_rate(place: ring.Ring, traffic: ring.Traffic, _: int) -> float:
    return float(ring.load(place, traffic)["output_tokens_per_second"])


def _rows(work: str, rates: Mapping[str, Callable[[int], float]], rounds: int) -> list[Row]:
    """Each tree's tokens per second, and their ratio to those of the commit in the same rounds."""
    for rate in rates.values():
        rate(-1)  # warm-up
    taken = interleave(rounds, rates)
    commit = next(iter(taken.values()))
    return [
        {"work": work, "tree": name, "tok/s": Figure.of(each).median, "to the commit": str(ratio(each, commit))}
        for name, each in taken.items()
    ]


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", help="commit, branch or tag to compare with")
    parser.add_argument("parts", nargs="+", choices=("bits", *_MODELS), help="what to compare")
    model_options(parser, "")
    output_options(parser)
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are shown (%(default)s)")
    parser.add_argument("--only", default="", metavar="NAME", help="bits: models with this in their name: 'qwen3 bf'")
    parser.add_argument("--fastest", action="store_true", help="bits: with the fastest kernels alone")
    arguments = parser.parse_args()
    end_children_when_terminated()
    before = checked_out(arguments.ref, arguments.models / "trees")
    _build_kernels(_ROOT)
    trees = {"commit": before, "commit again": before, "here": _ROOT}
    rows: list[Row] = []
    difference: str | None = None
    with tempfile.TemporaryDirectory() as directory:
        for part in dict.fromkeys(arguments.parts):
            if part == "bits":
                only, fastest = arguments.only, arguments.fastest
                of_part, difference = bits.run(before, _ROOT, Path(directory), only, fastest=fastest)
            else:
                model = find_model(arguments.model or _MODELS[part], arguments.models)
                compare = offline if part == "offline" else served
                of_part = compare(trees, model, arguments.rounds, Path(directory))
            print_table(of_part, f"{part}, against {arguments.ref}")
            rows += of_part
    emit(arguments, "against", rows)
    if difference is not None:
        raise SystemExit(f"\nThe first difference: {difference}")


if __name__ == "__main__":
    main()
