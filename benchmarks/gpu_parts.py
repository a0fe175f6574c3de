"""The parts of the GPU benchmark; ``benchmarks.gpu`` runs each in a separate process.

A step's time is the difference between a long and a short output's time, divided by the difference in steps, which
excludes prefill and the overhead of a round.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_limits import gpu_limits, seconds_of
from benchmarks.gpu_targets import GOALS
from benchmarks.report import Row
from benchmarks.roofline import ModelCost
from benchmarks.shapes import WITHOUT_WEIGHTS, describe_model
from benchmarks.work import Outcome, Work
from benchmarks.workers.ringline_engine import RinglineEngine

LARGE, SMALL = "llama-3.1-8b", "qwen3-0.6b"
_ROUNDS = 3


@contextmanager
def engine(model: str, **options: Any) -> Iterator[RinglineEngine]:
    """An engine with random weights of the shape ``model``."""
    known = {"device": "cuda", "load_format": "dummy", "max_model_len": 2048, "enable_prefix_caching": False}
    with tempfile.TemporaryDirectory() as directory:
        describe_model(model, Path(directory))
        started = RinglineEngine(directory, **(known | options))
        try:
            yield started
        finally:
            started.llm.close()


def cost_of(model: str) -> ModelCost:
    """The cost of the shape ``model`` in bfloat16."""
    with tempfile.TemporaryDirectory() as directory:
        describe_model(model, Path(directory))
        return ModelCost.of(Path(directory))


def step_seconds(run: Callable[[Work], Outcome], batch: int, prompt: int, short: int = 8, long: int = 72) -> float:
    """Seconds of a decoding step of ``batch`` sequences with ``prompt`` tokens and about half the ``long`` output."""
    best = {
        output: min(run(Work(batch, prompt, output, seed=seed)).seconds for seed in range(_ROUNDS))
        for output in (short, long)
    }
    return (best[long] - best[short]) / (long - short)


def _decode(part: str, batch: int, prompt: int, **options: Any) -> Row:
    limits, cost = gpu_limits(), cost_of(LARGE)
    with engine(LARGE, **options) as started:
        taken = step_seconds(started.run, batch, prompt)
    cached = batch * (prompt + 40.0)
    read = cost.step(batch, batch, cached, cached).read
    extra = {
        "step ms": 1e3 * taken,
        "copy TB/s": limits.bandwidth / 1e12,
        "product TFLOP/s": limits.flops / 1e12,
    }
    return GOALS[part].reached(read / limits.bandwidth / taken, **extra)


def decode_1(**options: Any) -> Row:
    """One sequence."""
    return _decode("decode-1", 1, 128, max_num_seqs=8, **options)


def decode_256(**options: Any) -> Row:
    """256 sequences, as on a large server, with contexts of 1024 tokens."""
    return _decode("decode-256", 256, 1024, max_num_batched_tokens=8192, **options)


def prefill(**options: Any) -> Row:
    """Eight prompts of 1024 tokens, in one step."""
    limits, cost = gpu_limits(), cost_of(LARGE)
    with engine(LARGE, max_num_batched_tokens=8192, **options) as started:
        taken = min(started.run(Work(8, 1024, 1, seed=seed)).seconds for seed in range(_ROUNDS + 1))
    operations = cost.step(8192, 8, 8 * 1024 * 512.5, 8 * 1024.0).operations
    extra = {"ms": 1e3 * taken, "product TFLOP/s": limits.flops / 1e12}
    return GOALS["prefill"].reached(operations / limits.flops / taken, **extra)


def graphs() -> Row:
    """A step replayed as a CUDA graph, compared with one launched kernel by kernel."""
    taken = {}
    for eager in (False, True):
        with engine(SMALL, enforce_eager=eager, max_num_seqs=8) as started:
            taken[eager] = step_seconds(started.run, 1, 128)
    extra = {"step ms": 1e3 * taken[False], "eager step ms": 1e3 * taken[True]}
    return GOALS["graphs"].reached(taken[True] / taken[False], **extra)


def kernels() -> Row:
    """A step's time, compared with the time of its kernels according to the profiler."""
    with engine(SMALL, max_num_seqs=8) as started:
        taken = step_seconds(started.run, 1, 128)
        work = [Work(1, 128, output, seed=9) for output in (8, 40)]
        busy = []
        for one in work:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                started.run(one)
            busy.append(sum(event.self_device_time_total for event in profile.key_averages()) / 1e6)
    own = (busy[1] - busy[0]) / 32
    return GOALS["kernels"].reached(taken / own, **{"step ms": 1e3 * taken, "kernels ms": 1e3 * own})


def _generate(batch: int, prompt: int, output: int) -> float:
    """Seconds of transformers' compiled ``generate`` with a static cache, after two rounds that compile it."""
    from transformers import AutoModelForCausalLM

    config = WITHOUT_WEIGHTS[SMALL]()
    loaded: Any = AutoModelForCausalLM
    model = loaded.from_config(config, dtype=torch.bfloat16).cuda().eval()
    taken = []
    for seed in range(4):
        ids = torch.tensor(Work(batch, prompt, output, seed=seed).prompts()).cuda()
        begun = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=output,
                max_new_tokens=output,
                do_sample=False,
                pad_token_id=0,
                cache_implementation="static",
            )
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return min(taken[2:])


def _transformers(batch: int) -> Row:
    prompt, output = 128, 128
    theirs = _generate(batch, prompt, output)
    torch.cuda.empty_cache()
    with engine(SMALL, max_num_batched_tokens=8192, gpu_memory_utilization=0.5) as started:
        ours = min(started.run(Work(batch, prompt, output, seed=seed)).seconds for seed in range(_ROUNDS))
    extra = {"tok/s": batch * output / ours, "its tok/s": batch * output / theirs}
    return GOALS[f"transformers-{batch}"].reached(theirs / ours, **extra)


def transformers_1() -> Row:
    """One sequence."""
    return _transformers(1)


def transformers_16() -> Row:
    """16 sequences."""
    return _transformers(16)


def transformers_64() -> Row:
    """64 sequences."""
    return _transformers(64)


def served() -> Row:
    """256 streams through the ring, compared with the same work offline."""
    from benchmarks.served import ring
    from benchmarks.served.ring import Traffic

    streams, prompt, output = 256, 128, 128
    with engine(LARGE, max_num_batched_tokens=8192) as started:
        offline = min(started.run(Work(streams, prompt, output, seed=seed)).seconds for seed in range(_ROUNDS))
    rate = streams * output / offline
    options = ["--device", "cuda", "--load-format", "dummy", "--max-model-len", "2048"]
    options += ["--no-enable-prefix-caching", "--max-num-batched-tokens", "8192"]
    with tempfile.TemporaryDirectory() as directory:
        model = describe_model(LARGE, Path(directory) / "model")
        with ring.serve(model, options, Path(directory)) as place:
            traffic = Traffic(streams, streams, prompt, output, warmup=16)
            through = max(float(ring.load(place, traffic)["output_tokens_per_second"]) for _ in range(_ROUNDS))
    return GOALS["served"].reached(through / rate, **{"tok/s": through, "offline tok/s": rate})


def memory() -> Row:
    """Memory under full load: within the budget, and without allocations while it runs."""
    free, total = torch.cuda.mem_get_info()
    with engine(LARGE, max_num_batched_tokens=8192) as started:
        before = torch.cuda.memory_reserved()
        started.run(Work(300, 1024, 64, seed=1))
        grown = torch.cuda.memory_reserved() - before
        used = free - torch.cuda.mem_get_info()[0]
    return GOALS["memory"].reached(used / (0.9 * total), **{"allocated after the warm-up, MiB": grown / 2**20})


def products() -> Row:
    """The batch-invariant product compared with cuBLAS, on the shapes of an 8B layer; the lowest of the ratios."""
    from engine_core.ops.gpu import GpuBackend

    processors = torch.cuda.get_device_properties().multi_processor_count
    ratios: dict[str, float] = {}
    for rows in (1, 256, 8192):
        for outputs, inputs in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)):
            weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            own, library = (GpuBackend(processors, way).linear(weight) for way in (True, False))
            ratios[f"{rows} × {outputs} × {inputs}"] = seconds_of(lambda library=library: library(x)) / seconds_of(  # type: ignore[misc]  # noqa: B023
                lambda own=own: own(x)  # type: ignore[misc]  # noqa: B023
            )
    return GOALS["products"].reached(min(ratios.values()), **ratios)


def _price(name: str, part: Callable[..., Row]) -> Callable[[], Row]:
    def run() -> Row:
        goal = GOALS[f"deterministic-{name}"]
        return dict(part(deterministic=True)) | {"what": goal.what, "target": goal.bound}

    return run


PARTS: dict[str, Callable[[], Row]] = {
    "decode-1": decode_1,
    "decode-256": decode_256,
    "prefill": prefill,
    "graphs": graphs,
    "kernels": kernels,
    "memory": memory,
    "products": products,
    "deterministic-decode-1": _price("decode-1", decode_1),
    "deterministic-decode-256": _price("decode-256", decode_256),
    "deterministic-prefill": _price("prefill", prefill),
    "transformers-1": transformers_1,
    "transformers-16": transformers_16,
    "transformers-64": transformers_64,
    "served": served,
}
"""The parts of ``GOALS``."""
