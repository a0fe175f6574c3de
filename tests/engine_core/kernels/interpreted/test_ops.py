"""Ops of GPUs against torch, on shapes that fill tiles and on shapes that do not."""

from __future__ import annotations

import pytest
import torch

from engine_core.activation import Activation
from engine_core.attention.base import Angles, KVCacheSpec
from engine_core.attention.paged import CachingRotaryOp
from engine_core.attention.triton import TritonAttention
from engine_core.kv_cache_interface import AttentionSpec
from engine_core.ops.base import HeadNorms, HeadsShape
from engine_core.ops.gpu import GpuBackend
from engine_core.ops.gpu_linear import InvariantLinear, ProductTiles
from engine_core.ops.torch import TorchBackend
from engine_core.weights.experts import ExpertsShape, ExpertWeights
from engine_core.weights.quantized_weight import FP4, SIGNED8, UNSIGNED4, Offset, QuantFormat
from tests.engine_core.ops.experts import chosen, numbers, weights_of
from tests.engine_core.ops.parts import Parts, assert_same_bits
from tests.engine_core.ops.quantized_weights import random_weight

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
OPS = GpuBackend(3, deterministic=True, device=torch.device("cpu"))


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("width", [64, 200])
def test_norm(width: int, biased: bool, dtype: torch.dtype) -> None:
    x, residual = (numbers(5, width, dtype=dtype, seed=seed) for seed in (0, 3))
    weight, bias = (numbers(width, dtype=torch.float32, seed=seed) for seed in (1, 2))
    made, expected = (layers.norm(weight, bias if biased else None, 1e-5, width) for layers in (OPS, TorchBackend()))
    close(made(x, residual=residual), expected(x, residual=residual), dtype)


def test_norm_of_groups_scaled(dtype: torch.dtype) -> None:
    x, residual = (numbers(5, 3, 40, dtype=dtype, seed=seed) for seed in (0, 3))
    weight = numbers(40, dtype=torch.float32, seed=1)
    made, expected = (layers.norm(weight, None, 1e-5, 40, 0.7) for layers in (OPS, TorchBackend()))
    close(made(x, residual=residual), expected(x, residual=residual), dtype)


WIDE = pytest.mark.wide
SHAPES = [
    HeadsShape(4, 2, 64, 64),
    pytest.param(HeadsShape(7, 1, 80, 80), marks=WIDE),
    HeadsShape(3, 1, 80, 24),
    HeadsShape(2, 2, 64, 32, interleaved=True),
    pytest.param(HeadsShape(4, 2, 64, 64, interleaved=True), marks=WIDE),
    HeadsShape(4, 2, 64, 0),
]
"""Rotated whole, in part, in neighbouring pairs, and not at all."""
QUERIES = HeadsShape(5, 0, 64, 64)
"""Without keys and values."""


def norms_of(shape: HeadsShape, normalized: str) -> HeadNorms | None:
    query, key, value = (numbers(shape.head_dim, dtype=torch.float32, seed=seed) for seed in (2, 3, 4))
    return HeadNorms(query, key, value if "values" in normalized else None, 1e-6) if normalized else None


def angles_of(shape: HeadsShape, rows: int) -> Angles | None:
    if shape.rotary_dim == 0:
        return None
    angles = numbers(rows, 1, shape.rotary_dim // 2, dtype=torch.float32, seed=1)
    scales = 1 + numbers(rows, 1, 1, dtype=torch.float32, seed=5).abs() if shape.interleaved else None
    return Angles(angles.cos(), angles.sin(), scales)


@pytest.mark.parametrize("normalized", ["queries and keys, values too", "", pytest.param("queries", marks=WIDE)])
@pytest.mark.parametrize("shape", [*SHAPES, QUERIES], ids=str)
def test_rotation(shape: HeadsShape, normalized: str, dtype: torch.dtype) -> None:
    heads = numbers(3, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim, dtype=dtype)
    norms, angles = norms_of(shape, normalized), angles_of(shape, 3)
    expected = TorchBackend().rotary(shape, norms)(heads.clone(), angles)
    for one, other in zip(OPS.rotary(shape, norms)(heads.clone(), angles), expected, strict=True):
        close(one, other, dtype)


@pytest.mark.parametrize("normalized", ["queries and keys, values too", pytest.param("", marks=WIDE)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rotation_into_the_cache(shape: HeadsShape, normalized: str, dtype: torch.dtype) -> None:
    """Queries, keys and values are those of the rotation alone, bit for bit, and nothing else is written."""
    rows, block_size, slots = 4, 16, torch.tensor([37, -1, 0, 15])
    heads = numbers(rows, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim, dtype=dtype)
    angles, rotation = angles_of(shape, rows), OPS.rotary(shape, norms_of(shape, normalized))
    query, key, value = rotation(heads.clone(), angles)
    spec = KVCacheSpec((AttentionSpec(shape.num_kv_heads, shape.head_dim),), block_size, dtype)
    [cache] = TritonAttention.allocate(spec, 3, torch.device("cpu"))
    expected = cache.fill_(torch.nan).clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0, slot // block_size, :, slot % block_size] = key[row]
            expected[1, slot // block_size, :, slot % block_size] = value[row]
    assert isinstance(rotation, CachingRotaryOp)
    made = rotation.into_cache(heads.clone(), angles, cache, slots)
    assert torch.equal(made, query)
    assert torch.equal(cache.isnan(), expected.isnan())
    assert torch.equal(cache.nan_to_num(), expected.nan_to_num())


def test_queries_alone_write_nothing_to_the_cache(dtype: torch.dtype) -> None:
    heads, angles = numbers(4, QUERIES.num_heads, QUERIES.head_dim, dtype=dtype), angles_of(QUERIES, 4)
    rotation = OPS.rotary(QUERIES, norms_of(QUERIES, "values too"))
    [cache] = TritonAttention.allocate(KVCacheSpec((AttentionSpec(1, 64),), 16, dtype), 3, torch.device("cpu"))
    cache.fill_(torch.nan)
    assert isinstance(rotation, CachingRotaryOp)
    made = rotation.into_cache(heads.clone(), angles, cache, torch.tensor([37, 0, 5, 15]))
    assert torch.equal(made, rotation(heads.clone(), angles)[0])
    assert cache.isnan().all()


@pytest.mark.parametrize("activation", [each for each in Activation if each is not Activation.CLAMPED_SWIGLU])
def test_activations(activation: Activation, dtype: torch.dtype) -> None:
    x = 3 * numbers(3, 2 * 1100, dtype=dtype)
    close(OPS.act_and_mul(x, activation), TorchBackend().act_and_mul(x, activation), dtype)
    close(OPS.activate(x, activation), TorchBackend().activate(x, activation), dtype)
    apart = x[:, :1000], activation, x[:, 1100:2100]
    close(OPS.activate(*apart), TorchBackend().activate(*apart), dtype)


@pytest.mark.parametrize(("outputs", "inputs"), [(96, 128), (70, 72)])
def test_linear(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight, bias = numbers(outputs, inputs, dtype=dtype) / 8, numbers(outputs, dtype=dtype, seed=1)
    x, residual = numbers(70, inputs, dtype=dtype, seed=2), numbers(70, outputs, dtype=dtype)
    product = x.float() @ weight.float().T
    close(OPS.linear(weight)(x), product.to(dtype), dtype)
    close(OPS.linear(weight)(x, dtype=torch.float32), product, dtype)
    close(OPS.linear(weight, bias)(x, residual=residual.clone()), (product + bias + residual).to(dtype), dtype)
    among_others = torch.cat([x[:, :8], residual], 1)[:, 8:]
    assert_same_bits(OPS.linear(weight, bias)(x, residual=among_others), OPS.linear(weight, bias)(x, residual=residual))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_a_product_has_equal_bits_in_every_batch(dtype: torch.dtype) -> None:
    layer = OPS.linear(numbers(72, 96, dtype=dtype))
    x = numbers(130, 96, dtype=dtype, seed=1)
    together = layer(x)
    for first, last in [(0, 1), (129, 130), (60, 66), (1, 130)]:
        assert torch.equal(layer(x[first:last]), together[first:last])


def test_tiles_of_a_product_are_decided_by_the_weight_alone() -> None:
    assert isinstance(OPS.linear(numbers(8, 16, dtype=torch.float32)), InvariantLinear)
    assert ProductTiles.of(4096, 2).columns < ProductTiles.of(28672, 2).columns


EXPERTS = [
    (ExpertsShape(5, 2, 64, 48, Activation.SILU), 7),
    pytest.param(ExpertsShape(5, 2, 64, 48, Activation.SILU, weighs_inputs=True), 7, marks=WIDE),
    (ExpertsShape(5, 2, 48, 72, Activation.RELU2, gated=False), 7),
    (ExpertsShape(6, 3, 48, 40, Activation.CLAMPED_SWIGLU, bias=True, swiglu_limit=1.5, swiglu_alpha=1.7), 1),
    pytest.param(ExpertsShape(37, 5, 80, 96, Activation.GELU_TANH), 50, marks=WIDE),
    pytest.param(ExpertsShape(3, 1, 64, 200, Activation.SILU, bias=True), 90, marks=WIDE),
]
"""Shapes and rows; some experts have no row, some more than a tile."""
ONE_TYPE = [pytest.param(each, marks=() if each == torch.bfloat16 else WIDE) for each in TOLERANCE]


@pytest.mark.parametrize("dtype", ONE_TYPE, ids=str)
@pytest.mark.parametrize(("shape", "rows"), EXPERTS)
def test_experts(shape: ExpertsShape, rows: int, dtype: torch.dtype) -> None:
    made, reference = OPS.experts(shape, dtype), TorchBackend().experts(shape, torch.float32)
    for experts, of in ((made, dtype), (reference, torch.float32)):
        weights = [weights_of(shape, expert, dtype) for expert in range(shape.num_experts)]
        experts.load(ExpertWeights(iter([each.to(of) for each in tensors]), biases) for tensors, biases in weights)
    x, residual = (numbers(rows, shape.hidden_size, dtype=dtype, seed=seed) for seed in (1, 2))
    ids, shares = chosen(shape, rows, seed=3)
    expected = reference(x.float(), ids, shares, residual.float())
    y = made(x, ids, shares, residual)
    torch.testing.assert_close(y.float(), expected, atol=4 * TOLERANCE[dtype], rtol=4 * TOLERANCE[dtype])
    assert torch.equal(made(x, ids, shares, None), made(x, ids, shares, torch.zeros_like(x)))
    for row in ([0], [rows - 1]):
        assert torch.equal(made(x[row], ids[row], shares[row], residual[row])[0], y[row][0])


@pytest.mark.parametrize("expert_parallel", [False, True], ids=["outputs", "experts"])
@pytest.mark.parametrize("dtype", ONE_TYPE, ids=str)
@pytest.mark.parametrize(("shape", "rows"), EXPERTS)
def test_experts_of_several_ranks(shape: ExpertsShape, rows: int, dtype: torch.dtype, expert_parallel: bool) -> None:
    parts = Parts.make(OPS.experts, shape, dtype, 2, expert_parallel=expert_parallel)
    x, residual = (numbers(rows, shape.hidden_size, dtype=dtype, seed=seed) for seed in (1, 2))
    ids, shares = chosen(shape, rows, seed=3)
    y = parts.put_together(parts.compute(x, ids, shares, residual))
    assert_same_bits(y, parts.whole(x, ids, shares, residual))


def test_grouped_linear_layers(dtype: torch.dtype) -> None:
    weight, x = (
        numbers(3, 32, 40, dtype=dtype, seed=1).transpose(1, 2),
        numbers(6, 3, 48, dtype=dtype, seed=2)[..., :32],
    )
    for layers in (OPS, GpuBackend(3, deterministic=False)):
        close(layers.grouped_linear(weight)(x), TorchBackend().grouped_linear(weight)(x), dtype)


FLOAT8 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())
FORMATS = {
    "zeros": QuantFormat(UNSIGNED4, 32, torch.float16, offset=Offset.ZERO),
    "minima in two steps": QuantFormat(UNSIGNED4, 16, torch.float16, outer_size=64, offset=Offset.MINIMUM),
    "FP4": QuantFormat(FP4, 128, torch.bfloat16),
    "8 bits": QuantFormat(SIGNED8, 200, torch.float32),
    "FP8": QuantFormat(FLOAT8, 64, torch.float32),
}


@pytest.mark.parametrize("kept", FORMATS.values(), ids=FORMATS)
def test_what_stays_quantized_is_multiplied_as_the_expanded_weight(kept: QuantFormat, dtype: torch.dtype) -> None:
    weight, order = random_weight(kept, 70, 200), torch.randperm(200, generator=torch.Generator().manual_seed(3))
    parts = [weight.each(lambda tensor: tensor[:40]), weight.each(lambda tensor: tensor[40:])]
    bias, x, residual = (numbers(*shape, dtype=dtype) / 4 for shape in ((70,), (9, 200), (9, 90)))
    made = OPS.quantized_linear(kept, 70, 200, dtype, iter(parts), bias, order)
    expanded = OPS.linear(weight.dequantized().to(dtype), bias)
    into = torch.zeros(9, 100, dtype=dtype)
    made(x, residual=residual[:, 20:], scale=0.5, into=into[:, 30:])
    close(into[:, 30:], expanded(x[:, order], residual=residual[:, 20:], scale=0.5), dtype)
    assert not into[:, :30].any()
    assert_same_bits(made(x[3:4], dtype=torch.float32), made(x, dtype=torch.float32)[3:4])
    some = torch.tensor([69, 0, 40])
    assert_same_bits(made.weight_rows(some), expanded.weight_rows(some)[:, order.argsort()])


def test_rows_of_what_stays_quantized_take_nothing_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step has them, where the table of embeddings stays quantized."""
    kept = FORMATS["FP4"]
    weight = random_weight(kept, 70, 200)
    made, some = OPS.quantized_linear(kept, 70, 200, torch.float32, iter([weight])), torch.tensor([69, 0, 40])
    expected = weight.dequantized()[some]
    monkeypatch.delattr(torch, "tensor")
    assert torch.equal(made.weight_rows(some), expected)
