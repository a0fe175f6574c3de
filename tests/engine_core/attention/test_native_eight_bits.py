"""An 8-bit KV cache, for every instruction set of this machine: right against keys and values rounded here, and the
same bits whatever the steps, chunks, blocks and threads are.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.attention.native import NativeAttention
from engine_core.kernels.library import Kernels, load_kernels
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, MLAAttentionSpec
from tests.engine_core.attention.sequences import (
    CPU,
    Geometry,
    Known,
    KnownLatents,
    Run,
    Sizes,
    assert_equal,
    assert_right,
    make_latents,
    make_sequences,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
formats = pytest.mark.parametrize("cache_dtype", ["int8", "fp8"])
FEW = [
    (Geometry(4, 2, 64, 16), torch.bfloat16),
    (Geometry(10, 2, 80, 1), torch.float32),
    (Geometry(7, 1, 16, 40), torch.float16),
]
GEOMETRIES = [Geometry(6, 2, 128, 40), Geometry(12, 1, 32, 256), Geometry(4, 2, 32, 4), Geometry(50, 1, 16, 16)]
CASES = [*FEW, *(pytest.param(each, dtype, marks=pytest.mark.wide) for each in GEOMETRIES for dtype in TOLERANCE)]


def rounded(numbers: torch.Tensor, cache_dtype: str) -> torch.Tensor:
    """What the cache keeps of numbers that share a scale along the last axis, in float64."""
    wide = numbers.float()
    step = (wide.abs().amax(-1, keepdim=True) / (127 if cache_dtype == "int8" else 1.875)).bfloat16().float()
    codes = wide * torch.where(step > 0, 1 / step, 0)
    if cache_dtype == "int8":
        values = codes.round()
    else:  # 1, 2, … 15 eighths of powers of two
        fraction, exponent = torch.frexp(codes.abs().clamp(2.0**-15, 1.875))
        values = torch.ldexp((16 * fraction).round(), exponent - 4).clamp(2.0**-15, 1.875).copysign(codes)
    return values.double() * step.double()


def check(kernels: Kernels, cache_dtype: str, geometry: Geometry, sequences: list[Known], **options: Any) -> None:
    """Right when each sequence is a step; in random steps, and with more threads, the same bits."""
    backend = NativeAttention(kernels, cache_dtype)
    torch.set_num_threads(1)
    alone = Run(backend, geometry, sequences, **options).at_once()
    kept = [Known(each.query, *(rounded(x, cache_dtype) for x in (each.key, each.value))) for each in sequences]
    tolerance = TOLERANCE[sequences[0].query.dtype]
    assert_right(alone, kept, tolerance, tolerance, **options)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        run = Run(backend, geometry, sequences, seed=threads, **options)
        assert_equal(run.in_random_steps(random.Random(threads)), alone)


@formats
@pytest.mark.parametrize(("geometry", "dtype"), CASES, ids=str)
def test_against_rounded_keys_and_values(
    kernels: Kernels, geometry: Geometry, dtype: torch.dtype, cache_dtype: str
) -> None:
    check(kernels, cache_dtype, geometry, make_sequences([1, 17, 140], geometry, dtype, seed=3))


@formats
@pytest.mark.parametrize("window", [1, 33])
def test_windows_caps_and_sinks(kernels: Kernels, window: int, cache_dtype: str) -> None:
    """Blocks behind a window, scales and all, are poisoned as soon as no row of a step sees them."""
    geometry = Geometry(4, 2, 32, 16)
    sequences = make_sequences([1, window + 1, 150], geometry, torch.bfloat16, seed=window)
    sinks = torch.linspace(-20.0, 20.0, geometry.num_heads)
    check(kernels, cache_dtype, geometry, sequences, window=window, softcap=5.0, sinks=sinks)


@formats
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_latents(kernels: Kernels, dtype: torch.dtype, cache_dtype: str) -> None:
    """A latent and its rotated part have scales of their own: here they differ a hundredfold."""
    backend, sizes = NativeAttention(kernels, cache_dtype), Sizes(6, 48, 32, 16)
    sequences = [replace(each, rope=100 * each.rope, query_rope=each.query_rope / 100) for each in
                 make_latents([1, 37, 140], sizes, dtype)]  # fmt: skip
    alone = Run(backend, sizes, sequences).at_once()
    kept = []
    for each in sequences:
        rope = torch.cat([each.rope[:, :16].double(), rounded(each.rope[:, 16:], cache_dtype)], 1)
        kept.append(KnownLatents(each.query, each.query_rope, rounded(each.latent, cache_dtype), rope))
    tolerance = 2 * TOLERANCE[dtype]
    assert_right(alone, kept, tolerance, tolerance)
    torch.set_num_threads(3)
    assert_equal(Run(backend, sizes, sequences, seed=1).in_random_steps(random.Random(1)), alone)


@formats
def test_few_and_many_long_sequences_give_the_same_bits(cache_dtype: str) -> None:
    """Keys are divided among threads; blocks of any size that fits a tile hold the same units."""
    backend = NativeAttention(load_kernels(), cache_dtype)
    sequences = make_sequences([1100], Geometry(4, 2, 32, 16), torch.bfloat16, seed=4)
    torch.set_num_threads(1)
    alone = Run(backend, Geometry(4, 2, 32, 16), sequences).at_once()
    for size in (2, 48, 128):
        assert_equal(Run(backend, Geometry(4, 2, 32, size), sequences).at_once(), alone)
    run = Run(backend, Geometry(4, 2, 32, 16), sequences, seed=1)
    run.step([(0, 1090)])
    for threads in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5):
        torch.set_num_threads(threads)
        run.step([(0, 1)])
    assert_equal(run.result(), alone)


@formats
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_broken_numbers_stay_visible_and_where_they_are(kernels: Kernels, broken: float, cache_dtype: str) -> None:
    """A key or a value that is no number: all rows that see it are NaN, and no others."""
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([30, 50], geometry, torch.bfloat16, seed=6)
    backend = NativeAttention(kernels, cache_dtype)
    expected = Run(backend, geometry, sequences).at_once()
    sequences[1].key[45, 0, 7] = broken
    sequences[1].value[31, 1, 3] = broken
    whole = expected[1].view(50, 4, 64)
    whole[45:, :2], whole[31:, 2:] = torch.nan, torch.nan
    run = Run(backend, geometry, sequences)
    run.step([(0, 30), (1, 50)])
    for actual, wanted in zip(run.result(), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


@formats
def test_numbers_that_are_all_zero_or_tiny_are_zero(kernels: Kernels, cache_dtype: str) -> None:
    geometry = Geometry(2, 1, 32, 16)
    sequences = make_sequences([20], geometry, torch.float32, seed=1)
    sequences[0].value[:] = 0
    sequences[0].value[3] = 1e-38
    [output] = Run(NativeAttention(kernels, cache_dtype), geometry, sequences).at_once()
    assert not output.any()


@pytest.mark.parametrize(
    ("layer", "elements", "scales"),
    [(AttentionSpec(8, 128), 2 * 8 * 128, 2 * 8), (AttentionSpec(2, 64), 256, 4), (MLAAttentionSpec(512, 64), 576, 2)],
)
def test_a_block_holds_codes_and_scales(layer: LayerCacheSpec, elements: int, scales: int) -> None:
    wide = KVCacheSpec((layer,), 16, torch.bfloat16)
    narrow = replace(wide, cache_dtype="int8")
    assert NativeAttention.bytes_per_block(narrow) == 16 * (elements + 2 * scales)
    assert 2 > NativeAttention.bytes_per_block(wide) / NativeAttention.bytes_per_block(narrow) >= 1.9
    [cache] = NativeAttention.allocate(narrow, 5, CPU)
    assert cache.untyped_storage().nbytes() == 5 * NativeAttention.bytes_per_block(narrow)


def test_numerics_name_the_type() -> None:
    backend = NativeAttention(load_kernels())
    spec = KVCacheSpec((AttentionSpec(1, 16),), 16, torch.bfloat16)
    kinds = {backend.numerics(replace(spec, cache_dtype=kind)) for kind in ("auto", "int8", "fp8")}
    assert len(kinds) == 3
