"""Where parts run: an NVIDIA GPU with the work of a server, or a CPU with as little of it as rehearses every line."""

from __future__ import annotations

import itertools
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from benchmarks.gpu.limits import gpu_limits, seconds_of
from benchmarks.limits import Gauge, Limits
from benchmarks.report import Row
from benchmarks.roofline import ModelCost
from benchmarks.shapes import describe_model
from benchmarks.workers.ringline_engine import RinglineEngine
from engine_core.platforms.cuda_graphs import CudaGraphRecorder

_MAX_MODEL_LEN = 16_384
"""On a GPU: twice the longest prompt here."""

_CONTEXTS = 3 << 30
"""Bytes of a GPU's memory that processes without an engine may take."""
_RETURN_TIMEOUT = 20.0
"""The children of a part that was killed are given ten seconds to end."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of models and of work."""

    large: str
    small: str
    """Shapes of ``benchmarks.shapes``."""
    decoding: tuple[tuple[int, int], ...]
    """Sequences that decode together, and the tokens of the prompt of each."""
    prompts: tuple[int, ...]
    """Tokens of a prompt that is computed alone."""
    streams: int
    """Through the ring at a time, with ``answer`` tokens each."""
    answer: int
    step_tokens: int
    """The most rows of a step."""
    rounds: int
    width: int
    """Of the layers that are measured alone."""


SCALES = {
    "full": Scale(
        "llama-3.1-8b", "qwen3-0.6b", ((1, 128), (64, 1024), (256, 1024)), (2048, 8192), 256, 128, 8192, 3, 4096
    ),
    "tiny": Scale("tiny-llama", "tiny-llama", ((1, 16), (2, 32), (4, 32)), (32, 64), 4, 16, 64, 1, 128),
}


@dataclass(frozen=True, slots=True)
class Place:
    """The device that is measured, and how much is done there."""

    device: str
    """cuda or cpu"""
    scale: Scale
    out: Path
    """Where files go that are results, too."""

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def processors(self) -> int:
        """Multiprocessors."""
        return torch.cuda.get_device_properties().multi_processor_count if self.is_gpu else 2

    def synchronize(self) -> None:
        """Wait until all is computed."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def limits(self) -> Limits:
        """What the device reaches in this minute."""
        return gpu_limits() if self.is_gpu else Gauge().take()

    def taken(self) -> int:
        """Bytes of memory in use: of the GPU, by whomever; of a CPU, by this process at most so far."""
        if self.is_gpu:
            free, total = torch.cuda.mem_get_info()
            return total - free
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def total(self) -> int:
        """Bytes of memory that there are."""
        return torch.cuda.mem_get_info()[1] if self.is_gpu else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def reserved(self) -> int:
        """Bytes that torch's allocator holds on a GPU."""
        return torch.cuda.memory_reserved() if self.is_gpu else 0

    def wait_for_memory(self) -> None:
        """Wait until processes that have ended have given theirs back: a driver takes a while for that."""
        end = time.monotonic() + _RETURN_TIMEOUT
        while self.is_gpu and self.taken() - self.reserved() > _CONTEXTS and time.monotonic() < end:
            time.sleep(0.1)

    @contextmanager
    def profiled(self, host: bool) -> Iterator[torch.profiler.profile]:
        """Record the kernels of all threads; with ``host``, and in a rehearsal, what torch does on the CPU."""
        kinds = [torch.profiler.ProfilerActivity.CUDA] if self.is_gpu else []
        kinds += [torch.profiler.ProfilerActivity.CPU] if host or not self.is_gpu else []
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(activities=kinds, experimental_config=config) as profile:
            yield profile
            self.synchronize()

    def kernels(self, profile: torch.profiler.profile) -> list[tuple[str, int, float]]:
        """What was recorded: names, calls, and microseconds of the device in all of them; the longest first.

        Raises ``RuntimeError`` if that is nothing of a GPU's.
        """
        events: list[Any] = list(profile.key_averages())
        if self.is_gpu:  # operations on the host have the time of their kernels, too: it would count twice
            events = [event for event in events if event.device_type == DeviceType.CUDA]
            if not events:
                raise RuntimeError("the profiler has seen no kernel: torch's warnings tell why CUPTI is not at hand")
        own = "self_device_time_total" if self.is_gpu else "self_cpu_time_total"
        found = [(event.key, event.count, float(getattr(event, own))) for event in events]
        return sorted(found, key=lambda one: -one[2])

    def seconds_of(self, run: Callable[[], object]) -> float:
        """Median time of ``run``, by the GPU's own clock.

        On a GPU it is captured and replayed: to launch a small kernel takes many times as long as to run it.
        """
        if self.is_gpu:
            return seconds_of(CudaGraphRecorder().record(run).replay)
        taken = []
        for _ in range(3):
            begun = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begun)
        return statistics.median(taken)

    @contextmanager
    def engine(self, model: str, **options: Any) -> Iterator[RinglineEngine]:
        """An engine with random weights of the shape ``model``."""
        known: dict[str, Any] = {"device": self.device, "load_format": "dummy", "enable_prefix_caching": False}
        known |= {"max_num_batched_tokens": self.scale.step_tokens, "dtype": "bfloat16"}
        known |= {"max_model_len": _MAX_MODEL_LEN} if self.is_gpu else {"kv_cache_memory_bytes": 64 << 20}
        with tempfile.TemporaryDirectory() as directory:
            describe_model(model, Path(directory), tokenizer=False)
            self.wait_for_memory()
            started = RinglineEngine(directory, **(known | options))
            try:
                yield started
            finally:
                started.llm.close()


@cache
def cost_of(model: str) -> ModelCost:
    """The cost of the shape ``model`` in bfloat16."""
    with tempfile.TemporaryDirectory() as directory:
        return ModelCost.of(describe_model(model, Path(directory), tokenizer=False))


def start_of(engine: RinglineEngine, model: str) -> Row:
    """A row without a target: how long ``engine`` took to start, stage by stage."""
    milestones = engine.milestones
    stages = {after.name: round(after.at - before.at, 2) for before, after in itertools.pairwise(milestones)}
    return {"what": f"start of {model}", "measured": sum(stages.values()), "of": "seconds", "target": None, **stages}
