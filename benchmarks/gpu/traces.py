"""Part: where the time of a step goes, as a trace for a browser and as the longest kernels."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.place import Place
from benchmarks.report import Row
from benchmarks.work import Work
from benchmarks.workers.ringline_engine import RinglineEngine

_LISTED = 12


def measure(place: Place) -> Iterator[Row]:
    """One step of a prompt; then one of short prompts and two that decode them."""
    tokens, batch = place.scale.prompts[0], place.scale.decoding[1][0]
    with place.engine(place.scale.large) as engine:
        for name, work in (("prompt", Work(1, tokens, 1, seed=3)), ("decode", Work(batch, 16, 3, seed=4))):
            engine.run(work)  # so that nothing is compiled in what is traced
            yield _trace(place, engine, name, work)


def _trace(place: Place, engine: RinglineEngine, name: str, work: Work) -> Row:
    """The row tells the longest kernels, in µs; the trace goes to a file."""
    with place.profiled(host=True) as profile:
        seconds = engine.run(work).seconds
    file = place.out / f"trace-{name}.json.gz"
    _export(profile, file)
    kernels = place.kernels(profile)
    return {
        "what": f"{name}: kernels' share of {work.batch} × {work.prompt} tokens and {work.output} after them",
        "measured": sum(micros for _, _, micros in kernels) / 1e6 / seconds,
        "of": "time",
        "target": None,
        "ms": 1e3 * seconds,
        "file": file.name,
        "longest": kernels[:_LISTED],
    }


def _export(profile: torch.profiler.profile, file: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        plain = Path(directory) / "trace.json"
        profile.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(file, "wb") as target:
            shutil.copyfileobj(source, target)
