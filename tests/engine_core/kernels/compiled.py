"""Kernels for GPUs compiled as they are launched, on a machine without a GPU.

What launches them runs on tensors without memory, and Triton, told of a GPU that is not there, makes machine code.

    make compile-gpu                          # every configuration, as a table; fails where one does not fit
    make compile-gpu GPU="bfloat16 sm_90"     # those in whose names all of these words occur
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from engine_core.activation import Activation
from engine_core.attention.base import Angles, AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.attention.triton import TritonAttention
from engine_core.kv_cache_interface import AttentionSpec, MLAAttentionSpec, RecurrentSpec, ShortConvSpec
from engine_core.ops.base import HeadNorms, HeadsShape
from engine_core.ops.gpu import GpuBackend
from engine_core.ops.lora import LoRAOutputs, LoRAWeights, RowsByAdapter, StepAdapters
from engine_core.ops.states import RecurrenceParameters
from engine_core.platforms.cuda import COMPILED_CAPABILITIES
from engine_core.states.base import StateCacheSpec, StateMetadata
from engine_core.weights.experts import ExpertsShape
from engine_core.weights.quantized_weight import FP4, SIGNED6, UNSIGNED4, Offset, QuantFormat
from tests.engine_core.attention.sequences import Geometry

META = torch.device("meta")
CAPABILITIES = tuple(10 * major + minor for major, minor in COMPILED_CAPABILITIES)
SMALLEST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program may have on the smallest supported GPUs, of compute capability 8.6 and 8.9."""
MOST_SPILLED = 128
"""Bytes that a thread may keep in memory for want of registers: a few numbers that are seldom needed."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as machine code."""

    name: str
    ptx: str
    shared: int
    """Bytes of a program."""
    registers: int
    """Of a thread."""
    spilled: int
    """Bytes of memory of a thread."""

    @property
    def fits(self) -> bool:
        return self.shared <= SMALLEST_SHARED_MEMORY and self.spilled <= MOST_SPILLED


class _Gpu:
    """As much of a driver as the compiler asks for; the number of the device is its compute capability."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)


@contextmanager
def compiling(capability: int, cache: Path) -> Iterator[list[Compiled]]:
    """Launches compile only, into ``cache``; what they made is in the list."""
    made: dict[str, Compiled] = {}
    known, launch = driver._active, JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        result = launch(kernel, *args, grid=grid, warmup=True, **options)
        made.setdefault(result.hash, _measured(kernel.fn.__name__, result))
        found[:] = made.values()

    found: list[Compiled] = []
    driver.set_active(_Gpu(capability))
    JITFunction.run = compile_only
    try:
        with knobs.cache.scope():  # which a plain assignment would leave in the environment
            knobs.cache.dir = str(cache)
            yield found
    finally:
        driver._active, JITFunction.run = known, launch


def _measured(name: str, kernel: Any) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {key: int(value) for key, value in re.findall(r"(REG|STACK):(\d+)", told)}
    return Compiled(name, kernel.asm["ptx"], kernel.metadata.shared, usage["REG"], usage["STACK"])


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Without memory."""
    return torch.empty(*shape, dtype=dtype, device=META)


def step_of_prompts_and_single_rows(rows: int) -> AttentionMetadata:
    starts, lengths, tables = (numbers(*shape, dtype=torch.int32) for shape in ((4,), (3,), (3, 7)))
    return AttentionMetadata(starts, lengths, tables, numbers(rows, dtype=torch.int64), 20, 100)


def attend(
    geometry: Geometry,
    dtype: torch.dtype,
    *,
    uniform: bool = False,
    window: int | None = None,
    num_blocks: int = 2**18,
) -> None:
    """A step of prompts and single rows; so many blocks take offsets beyond 32 bits in caches of usual heads."""
    backend = TritonAttention(max_model_len=8192, processors=132, uniform=uniform)
    spec = KVCacheSpec((AttentionSpec(geometry.num_kv_heads, geometry.head_dim),), geometry.block_size, dtype)
    cache = backend.allocate(spec, num_blocks, META)[0]
    rows, split = 40, [geometry.num_heads, geometry.num_kv_heads, geometry.num_kv_heads]
    metadata = step_of_prompts_and_single_rows(rows)
    heads = numbers(rows, sum(split), geometry.head_dim, dtype=dtype)
    query, key, value = torch.split(heads, split, dim=1)
    options = AttentionOptions(geometry.head_dim**-0.5, window)
    backend.forward(query, key, value, cache, metadata, options)
    if window is not None:
        capped = replace(options, logit_softcap=50.0, sinks=numbers(geometry.num_heads))
        backend.forward(query, key, value, cache, metadata, capped)
    halves, norm = numbers(rows, 1, geometry.head_dim // 2), numbers(geometry.head_dim)
    for norms in (None, HeadNorms(norm, norm, None, 1e-6)):
        rotation = GpuBackend(132, uniform).rotary(heads_of(geometry), norms)
        backend.forward_heads(heads, rotation, Angles(halves, halves), cache, metadata, options)


def attend_latents(num_heads: int, dtype: torch.dtype, *, uniform: bool) -> None:
    """A step of prompts and single rows over latents of DeepSeek's sizes."""
    backend = TritonAttention(max_model_len=8192, processors=132, uniform=uniform)
    spec = KVCacheSpec((MLAAttentionSpec(512, 64),), 16, dtype)
    cache = backend.allocate(spec, 1 << 18, META)[0]
    shapes = (40, num_heads, 512), (40, num_heads, 64), (40, 512), (40, 64)
    inputs = [numbers(*shape, dtype=dtype) for shape in shapes]
    backend.forward_latents(*inputs, cache, step_of_prompts_and_single_rows(40), AttentionOptions(192**-0.5))


def heads_of(geometry: Geometry) -> HeadsShape:
    """Heads that are rotated whole."""
    return HeadsShape(geometry.num_heads, geometry.num_kv_heads, geometry.head_dim, geometry.head_dim)


def compute_layers(geometry: Geometry, dtype: torch.dtype, hidden: int, inner: int) -> None:
    """What is between attentions, once: with norms of queries and keys, a bias and a residual, and without."""
    ops = GpuBackend(processors=132, deterministic=True)
    rows, head_dim = 40, geometry.head_dim
    count = geometry.num_heads + 2 * geometry.num_kv_heads
    typed = partial(numbers, dtype=dtype)
    norm = ops.norm(numbers(hidden), None, 1e-6, hidden)
    x = norm(norm(typed(rows, hidden)), residual=typed(rows, hidden))
    norm(typed(rows, 2 * hidden)[:, :hidden], in_place=True)
    angles, weight = numbers(rows, 1, head_dim // 2), numbers(head_dim)
    for norms in (None, HeadNorms(weight, weight, None, 1e-6)):
        ops.rotary(heads_of(geometry), norms)(typed(rows, count, head_dim), Angles(angles, angles))
    ops.act_and_mul(typed(rows, 2 * inner), Activation.SILU)
    ops.linear(typed(2 * inner, hidden), typed(2 * inner))(x)
    ops.linear(typed(hidden, inner))(typed(rows, inner), residual=typed(rows, hidden))
    ops.linear(typed(128256, hidden))(x, dtype=torch.float32)


def multiply_quantized(kept: QuantFormat, dtype: torch.dtype, hidden: int, inner: int) -> None:
    """A few rows by weights that stay quantized."""
    ops = GpuBackend(132, deterministic=True, device=META)
    for outputs, inputs in ((2 * inner, hidden), (hidden, inner)):
        layer = ops.quantized_linear(kept, outputs, inputs, dtype, ())
        layer(numbers(40, inputs, dtype=dtype), residual=numbers(40, outputs, dtype=dtype))
        layer(numbers(40, inputs, dtype=dtype), dtype=torch.float32)


def adapt(dtype: torch.dtype, inputs: int, outputs: int, groups: int = 1) -> None:
    """A few rows with an adapter of some ranks; of wider outputs, those of a head. Once as a graph captures it."""
    ops = GpuBackend(132, deterministic=True, device=META).lora_ops()
    op = ops.grouped_linear(groups, inputs, outputs)
    x, y = (numbers(40, groups, width, dtype=dtype) for width in (inputs, outputs))
    a, b, scales = (torch.zeros(shape) for shape in ((groups, 24, inputs), (groups, outputs, 24), (24,)))
    columns = torch.arange(outputs)
    adapter = ops.pack({0: LoRAWeights(a, scales, (LoRAOutputs(range(24), columns, b),))}, dtype)
    rows = RowsByAdapter.of(np.zeros(40, np.intp), 1)
    with ops.computing(StepAdapters((adapter,), 40, rows, rows)):
        op(x, y)
        op(x, y.float(), 0.5)
    with ops.rehearsing(40, 48):
        op(x, y)


def compute_experts(shape: ExpertsShape, dtype: torch.dtype) -> None:
    """A few rows through experts."""
    experts, rows = GpuBackend(132, deterministic=True, device=META).experts(shape, dtype), 40
    ids, x = numbers(rows, shape.top_k, dtype=torch.int32), numbers(rows, shape.hidden_size, dtype=dtype)
    experts(x, ids, numbers(*ids.shape), x)


def keep_states(spec: RecurrentSpec | ShortConvSpec, dtype: torch.dtype, delta: bool, rows: int = 40) -> None:
    """A step through a layer with a recurrence (``delta``: the gated delta rule, else Mamba-2), or of LFM2."""
    ops, typed, whole = GpuBackend(132, deterministic=True).state_ops(), partial(numbers, dtype=dtype), numbers
    starts, slots = (numbers(count, dtype=torch.int32) for count in (4, 3))
    metadata = StateMetadata(starts, slots, starts, slots, slots)
    [state] = StateCacheSpec((spec,), dtype).allocate(9, META)
    channels, taps = spec.channels, spec.conv_width + 1
    if isinstance(spec, ShortConvSpec):
        x, gate, output_gate = typed(rows, 3 * channels).split(channels, 1)
        ops.short_convolution(
            x, whole(taps, channels), None, state, metadata, silu=False, gate=gate, output_gate=output_gate
        )
        return
    heads, inner = spec.num_heads, spec.num_heads * spec.value_dim
    inputs = typed(rows, inner + channels + (1 + delta) * heads)
    gate, x, decay, *update = inputs.split([inner, channels, *[heads] * (1 + delta)], 1)
    y = ops.short_convolution(x, whole(taps, channels), whole(channels), state, metadata, silu=True)
    keys = spec.num_key_heads * spec.key_dim
    query, key, value = y.split([keys, keys, inner], 1)
    query, key = (each.unflatten(1, (spec.num_key_heads, spec.key_dim)) for each in (query, key))
    skips, epsilon = (None, 1e-6) if delta else (whole(heads), None)
    parameters = RecurrenceParameters(whole(heads), whole(heads), skips, spec.key_dim**-0.5, epsilon)
    value = value.unflatten(1, (heads, spec.value_dim))
    y = ops.recurrence(query, key, value, decay, update[0] if update else None, parameters, state, metadata)
    shape = (rows, heads, spec.value_dim) if delta else (rows, spec.num_key_heads, -1)
    y, gate = y.view(shape), gate.view(shape)
    ops.gated_norm(y, gate, whole(1, y.shape[2]), 1e-6, y.shape[2], norm_before_gate=delta)


EXPERTS = {
    "Qwen3-30B-A3B": ExpertsShape(128, 8, 2048, 768, Activation.SILU),
    "DeepSeek-V3": ExpertsShape(256, 8, 7168, 2048, Activation.SILU),
    "Nemotron-3-Nano-30B-A3B": ExpertsShape(128, 6, 2688, 1856, Activation.RELU2, gated=False),
    "gpt-oss-20b": ExpertsShape(
        32, 4, 2880, 2880, Activation.CLAMPED_SWIGLU, bias=True, swiglu_limit=7.0, swiglu_alpha=1.702
    ),
}
FORMATS = {
    "AWQ": QuantFormat(UNSIGNED4, 128, torch.float16, offset=Offset.ZERO),
    "MXFP4": QuantFormat(FP4, 32, torch.bfloat16),
    "Q4_K": QuantFormat(UNSIGNED4, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM),
    "Q6_K": QuantFormat(SIGNED6, 16, torch.float16, outer_size=256),
}
STATES: dict[str, tuple[RecurrentSpec | ShortConvSpec, bool]] = {
    "Qwen3-Next-80B-A3B": (RecurrentSpec(16, 32, 128, 128, 3), True),
    "Mamba-2-130M": (RecurrentSpec(1, 24, 128, 64, 3), False),
    "Nemotron-H-8B": (RecurrentSpec(8, 128, 128, 64, 3), False),
    "Falcon-H1-34B": (RecurrentSpec(2, 32, 256, 128, 3), False),
    "LFM2-1.2B": (ShortConvSpec(2048, 2), False),
}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
GEOMETRIES = [
    *(Geometry(32, 8, head_dim, block_size) for head_dim in (64, 96, 128, 256) for block_size in (16, 64)),
    *(Geometry(heads, kv_heads, 128, 16) for heads, kv_heads in ((8, 8), (14, 2), (16, 8), (32, 1))),
    Geometry(4, 2, 16, 16),
    Geometry(32, 8, 128, 256),
]


def every_configuration() -> Iterator[tuple[str, Callable[[], None]]]:
    """All that the options and the supported models lead to, by name."""
    for dtype in DTYPES:
        for uniform, way in ((False, ""), (True, " uniform")):
            for geometry in GEOMETRIES:
                yield f"{dtype} {geometry}{way}", partial(attend, geometry, dtype, uniform=uniform)
            for geometry in (Geometry(32, 8, 128, 16), Geometry(32, 8, 256, 16)):
                yield f"{dtype} {geometry} window{way}", partial(attend, geometry, dtype, uniform=uniform, window=4096)
            for heads in () if dtype == torch.float32 else (16, 20, 128):
                yield f"{dtype} latents of {heads} heads{way}", partial(attend_latents, heads, dtype, uniform=uniform)
        for hidden, inner, head_dim in ((1024, 3072, 128), (4096, 14336, 128), (896, 4864, 64)):
            shape = Geometry(32, 8, head_dim, 16)
            yield f"{dtype} layers of {hidden} and {inner}", partial(compute_layers, shape, dtype, hidden, inner)
        for name, kept in FORMATS.items():
            yield f"{dtype} {name}", partial(multiply_quantized, kept, dtype, 4096, 14336)
        for groups, inputs, outputs in ((1, 4096, 28672), (1, 14336, 4096), (1, 896, 1152), (128, 128, 512)):
            name = f"{dtype} adapters of {groups} layers of {inputs} and {outputs}"
            yield name, partial(adapt, dtype, inputs, outputs, groups)
        for model, experts in EXPERTS.items():
            yield f"{dtype} experts of {model}", partial(compute_experts, experts, dtype)
        for model, (spec, delta) in STATES.items():
            yield f"{dtype} states of {model}", partial(keep_states, spec, dtype, delta)


def main() -> None:
    """Print what configurations take. Ends with 1 where one does not compile or does not fit."""
    failed, words = False, sys.argv[1:]
    with tempfile.TemporaryDirectory() as cache:
        for capability in CAPABILITIES:
            for name, launch in every_configuration():
                name = f"sm_{capability} {name}"
                if not all(word in name for word in words):
                    continue
                with compiling(capability, Path(cache)) as made:
                    launch()
                for one in made:
                    verdict = "" if one.fits else "  DOES NOT FIT"
                    failed |= not one.fits
                    taken = f"{one.registers} registers, {one.spilled} B spilled, {one.shared} B shared"
                    print(f"{name}: {one.name} {taken}{verdict}", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
