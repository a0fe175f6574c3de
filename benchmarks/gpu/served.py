"""Part: streams through the ring, beside the same work offline."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.place import Place
from benchmarks.report import Row
from benchmarks.served import ring
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.served.ring import Traffic
from benchmarks.shapes import describe_model
from benchmarks.work import Work
from benchmarks.worker import Worker, WorkerSpec

_PROMPT = 128


def measure(place: Place) -> Iterator[Row]:
    """Tokens per second of all streams, which begin together."""
    end_children_when_terminated()
    scale = place.scale
    with tempfile.TemporaryDirectory() as directory:
        model, logs = describe_model(scale.large, Path(directory) / "model"), Path(directory)
        place.wait_for_memory()
        rate = _offline(place, model, logs)
        place.wait_for_memory()
        with ring.serve(model, [*_flags(_options(place)), "--device", place.device], logs) as served:
            traffic = Traffic(scale.streams, scale.streams, _PROMPT, scale.answer, warmup=min(16, scale.streams))
            found = [ring.load(served, traffic) for _ in range(scale.rounds)]
    best = max(found, key=lambda figures: float(figures["output_tokens_per_second"]))
    through = float(best["output_tokens_per_second"])
    known = {name: value for name, value in best.items() if isinstance(value, int | float)}
    start = {"seconds to the first token": served.seconds_to_first_token}
    yield GOALS["served"].reached(through / rate, **{"offline tok/s": rate}, **known, **start)


def _options(place: Place) -> dict[str, Any]:
    """Of both engines."""
    options: dict[str, Any] = {"load_format": "dummy", "max_model_len": 2048, "dtype": "bfloat16"}
    options |= {"max_num_batched_tokens": place.scale.step_tokens}
    return options | ({} if place.is_gpu else {"kv_cache_memory_bytes": 64 << 20})


def _flags(options: Mapping[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()] + ["--no-enable-prefix-caching"]


def _offline(place: Place, model: Path, logs: Path) -> float:
    """Tokens per second of an engine without services, in a process that returns the GPU's memory when it ends."""
    options = {"model": str(model), "device": place.device, "enable_prefix_caching": False, **_options(place)}
    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    spec = WorkerSpec("offline", sys.executable, "ringline_engine", options, environment)
    scale = place.scale
    with Worker(spec, logs) as worker:
        works = [Work(scale.streams, _PROMPT, scale.answer, seed=seed) for seed in range(scale.rounds)]
        return scale.streams * scale.answer / min(worker.run(work).seconds for work in works)
