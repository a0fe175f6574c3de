"""Measures each kernel separately, with its share of the machine's limit at the same time.

    python -m benchmarks.kernels                       # all kernels, with one thread and with all threads
    python -m benchmarks.kernels --only attention

Shapes are those of Qwen3-0.6B in bfloat16, for experts of Qwen3-30B-A3B, and for latents of DeepSeek-V2-Lite. Weights
and keys are read from memory: calls rotate over enough copies that no cache holds them. Activations are where the
previous kernel would have left them: those of small steps are in a cache, where a share of the stream bandwidth above
100 % is correct.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from benchmarks.attention_steps import BLOCK_SIZE, AttentionStep
from benchmarks.limits import Gauge, threads_of_torch
from benchmarks.report import Row, emit, output_options, print_table
from engine_core.activation import Activation
from engine_core.attention.base import AttentionBackend, AttentionOptions, KVCacheSpec
from engine_core.attention.selector import choose_attention
from engine_core.kernels.library import load_int8_kernels
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, MLAAttentionSpec, group_layers
from engine_core.layers.rotary import RopeParameters, Rotary
from engine_core.model_loader.dummy import DummyWeights
from engine_core.models.roofline import Cost
from engine_core.ops.base import ExpertsOp, HeadNorms, HeadsShape
from engine_core.ops.selector import choose_ops
from engine_core.quantization.base import Unquantized
from engine_core.quantization.int8 import Int8, Int8Linear
from engine_core.quantization.mxfp4 import MXFP4
from engine_core.quantization.stored_experts import ExpertFormats
from engine_core.request import SamplingParams
from engine_core.sampling.logits_processors import ProcessorSetup, SamplingRows
from engine_core.sampling.metadata import SamplingMetadata
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.sampler import Sampler
from engine_core.weights.expert_tensors import SeparateExperts
from engine_core.weights.experts import ExpertsShape, ExpertWeights, QuantizedExpertWeights
from engine_core.weights.quantized_weight import (
    SIGNED4,
    SIGNED6,
    SIGNED8,
    UNSIGNED4,
    UNSIGNED5,
    Offset,
    QuantFormat,
    QuantizedWeight,
)

_HIDDEN, _INNER, _VOCABULARY = 1024, 3072, 151_936
_HEADS, _KV_HEADS, _HEAD_DIM = 16, 8, 128
_EXPERTS = ExpertsShape(128, 8, 2048, 768, Activation.SILU)
_Q4_K = QuantFormat(UNSIGNED4, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM)
_Q5_K = QuantFormat(UNSIGNED5, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM)
_Q6_K = QuantFormat(SIGNED6, 16, torch.float16, outer_size=256)
_QUANTIZED_EXPERTS = {"MXFP4": (MXFP4, MXFP4), "Q4_K": (_Q4_K, _Q4_K), "Q4_K and Q6_K": (_Q4_K, _Q6_K)}
"""Gate and up, and down."""
_LATENT_DIM, _ROPE_DIM = 512, 64
_LINEARS = {
    "qkv_proj": ((_HEADS + 2 * _KV_HEADS) * _HEAD_DIM, _HIDDEN),
    "o_proj": (_HIDDEN, _HEADS * _HEAD_DIM),
    "gate_up_proj": (2 * _INNER, _HIDDEN),
    "down_proj": (_HIDDEN, _INNER),
    "lm_head": (_VOCABULARY, _HIDDEN),
}
_FORMATS = {
    "int4 in groups of 32": QuantFormat(SIGNED4, 32, torch.float16),
    "int4 in groups of 128": QuantFormat(SIGNED4, 128, torch.float16),
    "Q4_K": _Q4_K,
    "Q5_K": _Q5_K,
    "Q6_K": _Q6_K,
    "Q8_0": QuantFormat(SIGNED8, 32, torch.float16),
}
_ROWS = (1, 2, 4, 16, 64, 256, 1024)
_MOST_LOGITS = 256
"""The most rows of logits: no step has more sequences."""
_UNCACHED_BYTES = 1 << 28
"""Weights rotate over at least this many bytes."""
_SECONDS, _LEAST_CALLS = 0.2, 5


@dataclass(frozen=True, slots=True)
class Kernel:
    """One shape of one kernel."""

    name: str
    rows: int
    cost: Cost
    calls: Sequence[Callable[[], object]]
    """The same call on different copies of the data that must come from memory."""


def linears(names: Sequence[str], quantization: str | None) -> Iterator[Kernel]:
    """Products with packed weights."""
    weight_bytes = 2 if quantization is None else 1
    layers, _ = choose_ops(16, torch.bfloat16)
    make = layers.linear if quantization is None else partial(Int8Linear, bias=None, kernels=load_int8_kernels())
    for name in names:
        height, width = _LINEARS[name]
        copies = -(-_UNCACHED_BYTES // (height * width * weight_bytes))
        weights = [make(torch.randn(height, width).bfloat16() * 0.02) for _ in range(copies)]
        for rows in _ROWS:
            if name == "lm_head" and rows > _MOST_LOGITS:
                continue
            x = torch.randn(rows, width).bfloat16()
            moved = weight_bytes * height * width + 2 * rows * (height + width)
            calls = [partial(weight, x) for weight in weights]
            yield Kernel(f"{name} {quantization or 'bf16'}", rows, Cost(moved, 2.0 * rows * height * width), calls)


def quantized(names: Sequence[str]) -> Iterator[Kernel]:
    """Products with weights that stay quantized."""
    layers, _ = choose_ops(16, torch.bfloat16)
    for (kind, kept), name in itertools.product(_FORMATS.items(), names):
        height, width = _LINEARS[name]
        weight = _random_quantized(kept, height, width)
        layer = layers.quantized_linear(kept, height, width, torch.bfloat16, [weight])
        copies = -(-_UNCACHED_BYTES // layer.nbytes)
        calls = [layer] + [
            layers.quantized_linear(kept, height, width, torch.bfloat16, [weight]) for _ in range(copies - 1)
        ]
        for rows in _ROWS:
            x = torch.randn(rows, width).bfloat16()
            cost = Cost(layer.nbytes + 2 * rows * (height + width), 2.0 * rows * height * width)
            yield Kernel(f"{name} {kind}", rows, cost, [partial(call, x) for call in calls])


def _random_quantized(kept: QuantFormat, outputs: int, inputs: int) -> QuantizedWeight:
    groups = -(-inputs // kept.group_size)
    codes = torch.randint(0, len(kept.codebook), (outputs, inputs), dtype=torch.uint8)
    if kept.outer_size is None:
        return QuantizedWeight(kept, codes, torch.rand(outputs, groups).to(kept.scale_dtype))
    inner = torch.randint(0, 64, (outputs, groups), dtype=torch.int8)
    outer = torch.rand(outputs, -(-inputs // kept.outer_size)).to(kept.scale_dtype)
    minima, outer_minima = (inner, outer) if kept.offset is Offset.MINIMUM else (None, None)
    return QuantizedWeight(kept, codes, inner, outer, None, minima, outer_minima)


def experts(quantization: str | None) -> Iterator[Kernel]:
    """Experts; rows are spread evenly over them, and each expert with a row is read."""
    shape, weight_bytes = _EXPERTS, 2 if quantization is None else 1
    layers, _ = choose_ops(16, torch.bfloat16)
    method = Unquantized() if quantization is None else Int8(load_int8_kernels())
    layer = method.experts(shape, torch.bfloat16, layers)
    layer.load(_random_experts(shape))
    size = 3 * shape.hidden_size * shape.intermediate_size
    yield from _experts(quantization or "bf16", layer, size * weight_bytes)


def quantized_experts() -> Iterator[Kernel]:
    """Experts whose weights stay quantized."""
    layers, _ = choose_ops(16, torch.bfloat16)
    for name, (gate_up, down) in _QUANTIZED_EXPERTS.items():
        weights = _dummy_experts(_EXPERTS, gate_up, down)
        layer = layers.quantized_experts(_EXPERTS, gate_up, down, torch.bfloat16, weights)
        nbytes = ExpertFormats(gate_up, down).nbytes(_EXPERTS, _EXPERTS.whole) // _EXPERTS.num_experts
        yield from _experts(name, layer, nbytes)


def _experts(name: str, layer: ExpertsOp, nbytes: int) -> Iterator[Kernel]:
    """``nbytes`` of an expert."""
    shape = _EXPERTS
    order = torch.randperm(shape.num_experts, generator=torch.Generator().manual_seed(0)).int()
    for rows in _ROWS:
        x = torch.randn(rows, shape.hidden_size).bfloat16()
        pairs = torch.arange(rows * shape.top_k)
        calls = []
        for start in range(0, shape.num_experts, shape.top_k):
            ids = order[(pairs + start) % shape.num_experts].view(rows, shape.top_k)
            calls.append(partial(layer, x, ids, torch.rand(ids.shape), x))
        read = min(len(pairs), shape.num_experts) * nbytes + 6 * x.numel()
        products = 3 * shape.hidden_size * shape.intermediate_size
        yield Kernel(f"experts {name}", rows, Cost(read, 2.0 * len(pairs) * products), calls)


def _random_experts(shape: ExpertsShape) -> Iterator[ExpertWeights]:
    inner, hidden = shape.intermediate_size, shape.hidden_size
    for _ in range(shape.num_experts):
        sizes = ((inner, hidden), (inner, hidden), (hidden, inner))
        yield ExpertWeights(torch.randn(size).bfloat16() * 0.02 for size in sizes)


def _dummy_experts(shape: ExpertsShape, gate_up: QuantFormat, down: QuantFormat) -> Iterator[QuantizedExpertWeights]:
    make = DummyWeights({}, torch.bfloat16, torch.device("cpu"), seed=0).make_quantized
    for expert in SeparateExperts("experts").projections(shape, shape.whole):
        yield QuantizedExpertWeights(map(make, (gate_up, gate_up, down), expert, shape.inputs))


def attention() -> Iterator[Kernel]:
    """Decoding over contexts and windows of several lengths, and prefill of one prompt, with each type of cache."""
    steps = [AttentionStep(16, 1, context) for context in (128, 1024, 4096)]
    steps += [AttentionStep(16, 1, 16384, window=1024), AttentionStep(1, 1, 1024)]
    steps += [AttentionStep(1, 1, 16384, window=1024)]
    steps += [AttentionStep(1, prompt, prompt) for prompt in (128, 1024, 4096)]
    for step in steps:
        shapes = (_HEADS, _HEAD_DIM), (_KV_HEADS, _HEAD_DIM), (_KV_HEADS, _HEAD_DIM)
        spec, options = AttentionSpec(_KV_HEADS, _HEAD_DIM), AttentionOptions(_HEAD_DIM**-0.5, step.window)
        for kept, name in (("auto", "attention"), ("int8", "attention, int8 cache"), ("fp8", "attention, fp8 cache")):
            backend, _ = choose_attention(_HEAD_DIM, torch.bfloat16, cache_dtype=kept)
            yield _attention(name, backend, backend.forward, spec, step, shapes, options)


def latents() -> Iterator[Kernel]:
    """Decoding and prefill over latents."""
    backend, _ = choose_attention(_ROPE_DIM, torch.bfloat16)
    for step in (AttentionStep(16, 1, 4096), AttentionStep(1, 1, 16384), AttentionStep(1, 1024, 1024)):
        shapes = (_HEADS, _LATENT_DIM), (_HEADS, _ROPE_DIM), (_LATENT_DIM,), (_ROPE_DIM,)
        spec, options = MLAAttentionSpec(_LATENT_DIM, _ROPE_DIM), AttentionOptions(_LATENT_DIM**-0.5)
        yield _attention("latent attention", backend, backend.forward_latents, spec, step, shapes, options)


def _attention(
    name: str,
    backend: AttentionBackend,
    forward: Callable[..., torch.Tensor],
    spec: LayerCacheSpec,
    step: AttentionStep,
    shapes: Sequence[tuple[int, ...]],
    options: AttentionOptions,
) -> Kernel:
    """``shapes``: shapes per row of the inputs of ``forward``."""
    inputs = [torch.randn(step.rows, *shape).bfloat16() for shape in shapes]
    one = KVCacheSpec((spec,), BLOCK_SIZE, torch.bfloat16, cache_dtype=backend.cache_dtype)
    read = step.read * backend.bytes_per_block(one) // BLOCK_SIZE
    layers = -(-_UNCACHED_BYTES // read) if step.new == 1 else 1
    whole = replace(one, layers=(spec,) * layers, groups=group_layers([None] * layers))
    caches = backend.allocate(whole, step.num_blocks, torch.device("cpu"))
    for cache in caches:
        if cache.is_floating_point():
            cache.normal_()
        else:  # all of its memory: scales, too, are small numbers then
            torch.empty(0, dtype=cache.dtype).set_(cache.untyped_storage()).fill_(0x3C)
    metadata = step.metadata()
    cost = Cost(read + 2 * sum(x.nbytes for x in inputs), step.rows * step.seen * spec.operations(_HEADS))
    calls = [partial(forward, *inputs, cache, metadata, options) for cache in caches]
    return Kernel(f"{name} {'decode' if step.new == 1 else 'prefill'} {step}", step.rows, cost, calls)


def small_operations() -> Iterator[Kernel]:
    """The operations between the matrix products of a layer."""
    layers, _ = choose_ops(_HEAD_DIM, torch.bfloat16)
    norm = layers.norm(torch.ones(_HIDDEN), None, 1e-6, _HIDDEN)
    head_norms = HeadNorms(torch.ones(_HEAD_DIM), torch.ones(_HEAD_DIM), None, 1e-6)
    rotation = layers.rotary(HeadsShape(_HEADS, _KV_HEADS, _HEAD_DIM, _HEAD_DIM), head_norms)
    rotary = Rotary(RopeParameters("default", 1e6, _HEAD_DIM), 1024, torch.device("cpu"))
    for rows in (1, 16, 64, 256, 1024):
        x = torch.randn(rows, _HIDDEN).bfloat16()
        yield Kernel("rms_norm", rows, Cost(2 * x.nbytes), [partial(norm, x)])
        heads = torch.randn(rows, _HEADS + 2 * _KV_HEADS, _HEAD_DIM).bfloat16()
        angles = rotary.angles(torch.arange(rows))
        turned = heads.nbytes * (_HEADS + _KV_HEADS) // (_HEADS + 2 * _KV_HEADS)
        yield Kernel("qk-norm and rope", rows, Cost(2 * turned), [partial(rotation, heads, angles)])
        gate_up = torch.randn(rows, 2 * _INNER).bfloat16()
        yield Kernel(
            "silu·mul", rows, Cost(1.5 * gate_up.nbytes), [partial(layers.act_and_mul, gate_up, Activation.SILU)]
        )


def samplers() -> Iterator[Kernel]:
    """Sampling tokens from logits [rows, vocabulary] in float32, greedy and at random."""
    random = SamplingParams(temperature=0.8, top_p=0.95, top_k=50, seed=1)
    for name, params in (("sampler greedy", SamplingParams(temperature=0.0)), ("sampler top-k, top-p", random)):
        for rows in (1, 16, 64, 256):
            logits = torch.randn(rows, _VOCABULARY)
            yield Kernel(name, rows, Cost(logits.nbytes), [_sample(params, logits)])


def _sample(params: SamplingParams, logits: torch.Tensor) -> Callable[[], object]:
    rows = len(logits)
    state = SamplingMetadata(ProcessorSetup(rows, _VOCABULARY, ()))
    tokens = np.ones((rows, 8), np.int32)
    for slot in range(rows):
        state.add(slot, params, 0, 0)
    sampler, lengths = Sampler(state, NumpyOps(_VOCABULARY)), np.full(rows, 8, np.int64)
    sampling_rows = SamplingRows(np.arange(rows), tokens, lengths, lengths, np.zeros(rows, np.int64))
    return lambda: sampler.sample(logits, sampling_rows)


def seconds_of(kernel: Kernel) -> float:
    """The median time of a call."""
    for call in kernel.calls:
        call()
    taken: list[float] = []
    end = time.perf_counter() + _SECONDS
    for call in itertools.cycle(kernel.calls):
        begun = time.perf_counter()
        call()
        now = time.perf_counter()
        taken.append(now - begun)
        if now > end and len(taken) >= _LEAST_CALLS:
            return statistics.median(taken)
    raise AssertionError("a cycle has no end")


@torch.inference_mode()
def measure(kernels: Iterator[Kernel], threads: int | None) -> list[Row]:
    """A row for each kernel, with the limits measured just before it."""
    rows: list[Row] = []
    gauge = Gauge(threads)
    with threads_of_torch(threads) as count:
        for kernel in kernels:
            limits, seconds = gauge.take(), seconds_of(kernel)
            bound = (
                "memory" if kernel.cost.read / limits.bandwidth > kernel.cost.operations / limits.flops else "compute"
            )
            rows.append(
                {
                    "kernel": kernel.name,
                    "rows": kernel.rows,
                    "threads": count,
                    "µs": 1e6 * seconds,
                    "GB/s": kernel.cost.read / seconds / 1e9,
                    "GFLOP/s": kernel.cost.operations / seconds / 1e9 or None,
                    "bound": bound,
                    "share": kernel.cost.seconds(limits) / seconds,
                    "stream GB/s": limits.bandwidth / 1e9,
                    "bf16 GFLOP/s": limits.flops / 1e9,
                }
            )
    return rows


GROUPS: dict[str, Callable[[], Iterator[Kernel]]] = {
    "attention": attention,
    "latents": latents,
    "linear": lambda: linears(list(_LINEARS), None),
    "int8": lambda: linears(["gate_up_proj", "lm_head"], "int8"),
    "quantized": lambda: quantized(["gate_up_proj", "down_proj"]),
    "experts": lambda: itertools.chain(experts(None), experts("int8"), quantized_experts()),
    "small": small_operations,
    "sampler": samplers,
}


def measure_groups(names: Sequence[str], threads: Sequence[int | None]) -> list[Row]:
    """Rows of the kernels of some groups, with each number of threads."""
    return [row for name in names for count in threads for row in measure(GROUPS[name](), count)]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    output_options(parser)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS), help="groups of kernels")
    parser.add_argument("--threads", type=int, nargs="+", help="numbers of threads; by default one, and all")
    arguments = parser.parse_args()
    rows = measure_groups(arguments.only, arguments.threads or (1, None))
    print_table(rows, "kernels")
    emit(arguments, "kernels", rows)


if __name__ == "__main__":
    main()
