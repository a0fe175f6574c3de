"""Parts: the speed of whole engines, as a share of what the GPU allows in the same minute."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.place import Place, cost_of, start_of
from benchmarks.gpu.steps import decoding_seconds
from benchmarks.limits import Limits
from benchmarks.report import Row
from benchmarks.shapes import WITHOUT_WEIGHTS
from benchmarks.work import Work
from benchmarks.workers.ringline_engine import RinglineEngine

_OF_BATCHES = ("decode-1", "decode-64", "decode-256")
_OF_PROMPTS = ("prefill-2048", "prefill-8192")


def measure(place: Place) -> Iterator[Row]:
    """Decoding and prompts of the large model."""
    limits = place.limits()
    yield limits_row(limits)
    with place.engine(place.scale.large) as engine:
        yield start_of(engine, place.scale.large)
        for name, (batch, prompt) in zip(_OF_BATCHES, place.scale.decoding, strict=True):
            yield _decode(place, engine, limits, name, batch, prompt)
        for name, tokens in zip(_OF_PROMPTS, place.scale.prompts, strict=True):
            yield _prefill(place, engine, limits, name, tokens)


def deterministic(place: Place) -> Iterator[Row]:
    """The same with products that do not depend on the batch; the largest work is left out."""
    limits = place.limits()
    yield limits_row(limits)
    with place.engine(place.scale.large, deterministic=True) as engine:
        yield start_of(engine, place.scale.large)
        for name, (batch, prompt) in zip(_OF_BATCHES[:2], place.scale.decoding, strict=False):
            yield _decode(place, engine, limits, f"deterministic-{name}", batch, prompt)
        yield _prefill(place, engine, limits, f"deterministic-{_OF_PROMPTS[0]}", place.scale.prompts[0])


def limits_row(limits: Limits) -> Row:
    """A row without a target."""
    return {
        "what": "a large product in bfloat16",
        "measured": limits.flops / 1e12,
        "of": "TFLOP/s",
        "target": None,
        "copy TB/s": limits.bandwidth / 1e12,
    }


def _decode(place: Place, engine: RinglineEngine, limits: Limits, name: str, batch: int, prompt: int) -> Row:
    taken = decoding_seconds(engine.llm, batch, prompt, place.scale.step_tokens)
    cached = batch * (prompt + 32.0)
    read = cost_of(place.scale.large).step(batch, batch, cached, cached).read
    return GOALS[name].reached(
        read / limits.bandwidth / taken, **{"step ms": 1e3 * taken, "tok/s": batch / taken, "GB": read / 1e9}
    )


def _prefill(place: Place, engine: RinglineEngine, limits: Limits, name: str, tokens: int) -> Row:
    taken = min(engine.run(Work(1, tokens, 1, seed=seed)).seconds for seed in range(place.scale.rounds))
    cost = cost_of(place.scale.large).step(tokens, 1, tokens * (tokens + 1) / 2, float(tokens))
    extra = {"ms": 1e3 * taken, "tok/s": tokens / taken, "TFLOP": cost.operations / 1e12}
    return GOALS[name].reached(cost.operations / limits.flops / taken, **extra)


def launches(place: Place) -> Iterator[Row]:
    """How much of a step is spent on launching, where steps are short."""
    taken: dict[bool, float] = {}
    for eager in (True, False):
        options = {"enforce_eager": eager, "max_num_seqs": 8, "gpu_memory_utilization": 0.3}  # of each of two
        with place.engine(place.scale.small, **options) as engine:
            taken[eager] = decoding_seconds(engine.llm, 1, 128, place.scale.step_tokens)
            if not eager:
                extra = {"step ms": 1e3 * taken[False], "eager step ms": 1e3 * taken[True]}
                yield GOALS["eager"].reached(taken[True] / taken[False], **extra)
                kernels, own = _kernels_of_a_step(place, engine)  # last: not every machine lets a profiler see its GPU
                extra = {"step ms": 1e3 * taken[False], "kernels ms": 1e3 * own, "kernels": kernels}
                yield GOALS["busy"].reached(taken[False] / own, **extra)


def _kernels_of_a_step(place: Place, engine: RinglineEngine) -> tuple[float, float]:
    """How many kernels a decoding step has, by the profiler, and their seconds: of a long output less a short one.

    There are several for each layer, unless the profiler does not see those of graphs.
    """
    counts, busy = [], []
    for output in (8, 40):
        with place.profiled(host=False) as profile:
            engine.run(Work(1, 128, output, seed=9))
        kernels = place.kernels(profile)
        counts.append(sum(count for _, count, _ in kernels))
        busy.append(sum(micros for _, _, micros in kernels) / 1e6)
    return (counts[1] - counts[0]) / 32, (busy[1] - busy[0]) / 32


def generate(place: Place) -> Iterator[Row]:
    """The small model beside transformers, whose ``generate`` is compiled, with a static cache."""
    prompt, output = (128, 128) if place.is_gpu else (16, 8)
    batches = (1, 16, 64) if place.is_gpu else (1, 2, 4)
    theirs = {batch: _generate(place, batch, prompt, output) for batch in batches}
    if place.is_gpu:
        torch.cuda.empty_cache()
    with place.engine(place.scale.small, gpu_memory_utilization=0.5) as engine:
        for name, batch in zip(("generate-1", "generate-16", "generate-64"), batches, strict=True):
            works = [Work(batch, prompt, output, seed=seed) for seed in range(place.scale.rounds)]
            ours = min(engine.run(work).seconds for work in works)
            extra = {"tok/s": batch * output / ours, "its tok/s": batch * output / theirs[batch]}
            yield GOALS[name].reached(theirs[batch] / ours, **extra)


def _generate(place: Place, batch: int, prompt: int, output: int) -> float:
    """Seconds of transformers' ``generate``, after two rounds that compile it.

    All rounds have one cache: for a cache at other addresses, which each call would make, graphs are captured anew.
    """
    from transformers import AutoModelForCausalLM, StaticCache

    torch.compiler.reset()  # or kernels would be made for batches of any size, after those for one
    loaded: Any = AutoModelForCausalLM
    model = loaded.from_config(WITHOUT_WEIGHTS[place.scale.small](), dtype=torch.bfloat16).to(place.device).eval()
    cache: Any = StaticCache(config=model.config, max_cache_len=prompt + output)
    taken = []
    for seed in range(2 + place.scale.rounds):
        ids = torch.tensor(Work(batch, prompt, output, seed=seed).prompts(), device=place.device)
        begun = time.perf_counter()
        with torch.inference_mode():
            cache.reset()
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=output,
                max_new_tokens=output,
                do_sample=False,
                pad_token_id=0,
                past_key_values=cache,
            )
        place.synchronize()
        taken.append(time.perf_counter() - begun)
    return min(taken[2:])
