"""Layers of GPUs against torch, on shapes that fill tiles and on shapes that do not."""

from __future__ import annotations

import pytest
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.attention.paged import CachingRotation
from engine_core.attention.triton import TritonAttention
from engine_core.kv_cache_interface import AttentionSpec
from engine_core.layers.gpu_backend import GpuBackend
from engine_core.layers.gpu_linear import InvariantLinear, ProductTiles
from engine_core.layers.torch_backend import TorchBackend

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
LAYERS = GpuBackend(processors=3, deterministic=True)


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("width", [64, 200])
def test_norm(width: int, dtype: torch.dtype) -> None:
    x, weight = numbers(5, width, dtype=dtype), numbers(width, dtype=dtype, seed=1)
    arguments = (weight.float(), None, 1e-5, len(weight))
    close(LAYERS.norm(*arguments)(x), TorchBackend().norm(*arguments)(x), dtype)


@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(4, 2, 64), (7, 1, 80)])
@pytest.mark.parametrize("normalized", [True, False])
def test_rotation(query_heads: int, kv_heads: int, head_dim: int, normalized: bool, dtype: torch.dtype) -> None:
    heads = numbers(3, query_heads + 2 * kv_heads, head_dim, dtype=dtype)
    angles = numbers(3, 1, head_dim // 2, dtype=torch.float32, seed=1)
    norms = (numbers(head_dim, dtype=dtype, seed=2), numbers(head_dim, dtype=dtype, seed=3)) if normalized else None
    expected = TorchBackend().rotary(query_heads, kv_heads, head_dim, norms, 1e-6)(
        heads.clone(), angles.cos(), angles.sin()
    )
    actual = LAYERS.rotary(query_heads, kv_heads, head_dim, norms, 1e-6)(heads.clone(), angles.cos(), angles.sin())
    for one, other in zip(actual, expected, strict=True):
        close(one, other, dtype)


@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(4, 2, 64), (7, 1, 80)])
@pytest.mark.parametrize("normalized", [True, False])
def test_rotation_into_the_cache(
    query_heads: int, kv_heads: int, head_dim: int, normalized: bool, dtype: torch.dtype
) -> None:
    """Queries, keys and values are those of the rotation alone, bit for bit, and nothing else is written."""
    rows, block_size, slots = 4, 16, torch.tensor([37, -1, 0, 15])
    heads = numbers(rows, query_heads + 2 * kv_heads, head_dim, dtype=dtype)
    angles = numbers(rows, 1, head_dim // 2, dtype=torch.float32, seed=1)
    cos, sin = angles.cos(), angles.sin()
    norms = (numbers(head_dim, dtype=dtype, seed=2), numbers(head_dim, dtype=dtype, seed=3)) if normalized else None
    rotation = LAYERS.rotary(query_heads, kv_heads, head_dim, norms, 1e-6)
    query, key, value = rotation(heads.clone(), cos, sin)
    spec = KVCacheSpec((AttentionSpec(kv_heads, head_dim),), block_size, dtype)
    [cache] = TritonAttention.allocate(spec, 3, torch.device("cpu"))
    expected = cache.fill_(torch.nan).clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0, slot // block_size, :, slot % block_size] = key[row]
            expected[1, slot // block_size, :, slot % block_size] = value[row]
    assert isinstance(rotation, CachingRotation)
    made = rotation.into_cache(heads.clone(), cos, sin, cache, slots)
    assert torch.equal(made, query)
    assert torch.equal(cache.isnan(), expected.isnan())
    assert torch.equal(cache.nan_to_num(), expected.nan_to_num())


def test_silu_and_mul(dtype: torch.dtype) -> None:
    gate_up = 3 * numbers(3, 2 * 1500, dtype=dtype)
    close(LAYERS.act_and_mul(gate_up), TorchBackend().silu_and_mul(gate_up), dtype)


@pytest.mark.parametrize(("outputs", "inputs"), [(96, 128), (70, 72)])
def test_linear(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight, bias = numbers(outputs, inputs, dtype=dtype) / 8, numbers(outputs, dtype=dtype, seed=1)
    x, residual = numbers(70, inputs, dtype=dtype, seed=2), numbers(70, outputs, dtype=dtype)
    product = x.float() @ weight.float().T
    close(LAYERS.linear(weight)(x), product.to(dtype), dtype)
    close(LAYERS.linear(weight)(x, dtype=torch.float32), product, dtype)
    close(LAYERS.linear(weight, bias)(x, residual=residual.clone()), (product + bias + residual).to(dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_a_product_has_equal_bits_in_every_batch(dtype: torch.dtype) -> None:
    layer = LAYERS.linear(numbers(72, 96, dtype=dtype))
    x = numbers(130, 96, dtype=dtype, seed=1)
    together = layer(x)
    for first, last in [(0, 1), (129, 130), (60, 66), (1, 130)]:
        assert torch.equal(layer(x[first:last]), together[first:last])


def test_tiles_of_a_product_are_decided_by_the_weight_alone() -> None:
    assert isinstance(LAYERS.linear(numbers(8, 16, dtype=torch.float32)), InvariantLinear)
    assert ProductTiles.of(4096, 2).columns < ProductTiles.of(28672, 2).columns
