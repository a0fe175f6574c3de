"""Kernels as they are compiled: against float64, and bit for bit over chunks and batches."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch

from engine_core.attention.base import Angles, KVCacheSpec
from engine_core.attention.triton import TritonAttention
from engine_core.kv_cache_interface import AttentionSpec
from engine_core.ops.activation import Activation
from engine_core.ops.base import ExpertsShape, ExpertWeights, HeadNorms, HeadsShape
from engine_core.ops.gpu import GpuBackend
from engine_core.ops.torch import TorchBackend
from engine_core.sampling import noise
from tests.engine_core.attention.sequences import (
    Geometry,
    Run,
    Sizes,
    assert_equal,
    assert_right,
    make_latents,
    make_sequences,
)
from tests.engine_core.ops.experts import chosen, load, numbers, weights_of

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
GEOMETRIES = [
    Geometry(32, 8, 128, 16),
    Geometry(16, 8, 128, 32),
    Geometry(28, 4, 128, 16),
    Geometry(14, 2, 64, 64),
    Geometry(8, 8, 80, 16),
    Geometry(16, 1, 256, 16),
]
PROCESSORS = 132


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(("uniform", "window"), [(False, None), (True, None), (False, 200), (True, 33)])
def test_attention_in_random_steps(geometry: Geometry, dtype: torch.dtype, uniform: bool, window: int | None) -> None:
    sequences = make_sequences([1, 17, 130, 300, 700], geometry, dtype, seed=1)
    backend = TritonAttention(1024, PROCESSORS, uniform)
    run = Run(backend, geometry, sequences, seed=2, device=GPU, window=window)
    assert_right(run.in_random_steps(random.Random(3)), sequences, TOLERANCE[dtype], window=window)


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_uniform_attention_gives_equal_bits_however_rows_are_cut_and_batched(
    dtype: torch.dtype, window: int | None
) -> None:
    geometry = Geometry(16, 4, 128, 16)
    sequences = make_sequences([5, 600, 1000], geometry, dtype, seed=3)
    backend = TritonAttention(1024, PROCESSORS, uniform=True)
    expected = Run(backend, geometry, sequences, device=GPU, window=window).at_once()
    run = Run(backend, geometry, sequences, seed=1, device=GPU, window=window)
    assert_equal(run.in_random_steps(random.Random(4)), expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 4096), (28672, 4096), (4096, 14336), (1000, 1000)])
def test_own_products(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight = (numbers(outputs, inputs, dtype=dtype, seed=1) / inputs**0.5).to(GPU)
    x, residual = numbers(300, inputs, dtype=dtype, seed=2).to(GPU), numbers(300, outputs, dtype=dtype, seed=3).to(GPU)
    layer = GpuBackend(PROCESSORS, deterministic=True).linear(weight)
    together = layer(x, residual=residual)
    expected = (x.double() @ weight.double().T + residual.double()).to(dtype)
    torch.testing.assert_close(together, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    for first, last in [(0, 1), (7, 9), (299, 300), (0, 64), (100, 229)]:
        assert torch.equal(layer(x[first:last], residual=residual[first:last]), together[first:last])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [Sizes(16, 512, 64, 16), Sizes(20, 512, 64, 64), Sizes(4, 128, 32, 16)], ids=str)
def test_latents(sizes: Sizes, dtype: torch.dtype) -> None:
    sequences, backend = make_latents([1, 17, 300, 700], sizes, dtype), TritonAttention(1024, PROCESSORS, uniform=True)
    alone = Run(backend, sizes, sequences, device=GPU).at_once()
    assert_right(alone, sequences, TOLERANCE[dtype], TOLERANCE[dtype])
    assert_equal(Run(backend, sizes, sequences, seed=1, device=GPU).in_random_steps(random.Random(2)), alone)


EXPERTS = [
    ExpertsShape(128, 8, 2048, 768, Activation.SILU),
    ExpertsShape(32, 4, 720, 360, Activation.CLAMPED_SWIGLU, bias=True, swiglu_limit=7.0, swiglu_alpha=1.702),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", EXPERTS, ids=lambda shape: str(shape.num_experts))
def test_experts(shape: ExpertsShape, dtype: torch.dtype) -> None:
    made = load(GpuBackend(PROCESSORS, True).experts(shape, dtype), shape, dtype)
    reference = TorchBackend().experts(shape, torch.float32)
    weights = [weights_of(shape, expert, dtype) for expert in range(shape.num_experts)]
    reference.load(ExpertWeights(iter([each.float() for each in tensors]), biases) for tensors, biases in weights)
    x, (ids, shares) = numbers(300, shape.hidden_size, dtype=dtype, seed=1), chosen(shape, 300, seed=2)
    expected = reference(x.float(), ids, shares, x.float())
    on_gpu = [each.to(GPU) for each in (x, ids, shares)]
    y = made(*on_gpu, on_gpu[0])
    torch.testing.assert_close(y.cpu().float(), expected, atol=4 * TOLERANCE[dtype], rtol=4 * TOLERANCE[dtype])
    for first, last in ((0, 1), (7, 90)):
        part = [each[first:last] for each in on_gpu]
        assert torch.equal(made(*part, part[0]), y[first:last])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
def test_layers(dtype: torch.dtype, deterministic: bool) -> None:
    layers, reference = GpuBackend(PROCESSORS, deterministic), TorchBackend()
    close = partial(torch.testing.assert_close, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    weight, bias, x = (numbers(*shape, dtype=dtype, seed=4) for shape in ((96, 128), (96,), (50, 128)))
    residual = numbers(50, 96, dtype=dtype, seed=5)
    made = layers.linear(weight.to(GPU) / 8, bias.to(GPU))(x.to(GPU), residual=residual.to(GPU))
    product = x.double() @ weight.double().T / 8
    close(made.cpu(), (product + bias + residual).to(dtype))
    wide = layers.linear(weight.to(GPU) / 8)(x.to(GPU), dtype=torch.float32)
    close(wide.cpu(), product.float())
    norm = numbers(128, dtype=dtype, seed=6).float()
    normed = layers.norm(norm.to(GPU), None, 1e-5, 128)(x.to(GPU))
    close(normed.cpu(), reference.norm(norm, None, 1e-5, 128)(x))
    close(layers.act_and_mul(x.to(GPU), Activation.SILU).cpu(), reference.act_and_mul(x, Activation.SILU))
    heads, angles = numbers(50, 8, 128, dtype=dtype, seed=7), angles_of(50)
    weight, shape = numbers(128, dtype=torch.float32, seed=6), HeadsShape(4, 2, 128, 128)
    on_gpu = HeadNorms(weight.to(GPU), weight.to(GPU), None, 1e-6)
    made = layers.rotary(shape, on_gpu)(heads.to(GPU), Angles(angles.cos.to(GPU), angles.sin.to(GPU)))
    for one, other in zip(made, reference.rotary(shape, HeadNorms(weight, weight, None, 1e-6))(heads, angles)):  # noqa: B905
        close(one.cpu(), other)


def angles_of(rows: int) -> Angles:
    angles = numbers(rows, 1, 64, dtype=torch.float32, seed=8)
    return Angles(angles.cos(), angles.sin())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("normalized", [False, True])
def test_rotation_into_the_cache(dtype: torch.dtype, normalized: bool) -> None:
    heads, on_host = numbers(50, 16, 128, dtype=dtype, seed=7), angles_of(50)
    angles = Angles(on_host.cos.to(GPU), on_host.sin.to(GPU))
    query_norm, key_norm = (numbers(128, dtype=torch.float32, seed=seed).to(GPU) for seed in (1, 2))
    norms = HeadNorms(query_norm, key_norm, None, 1e-6) if normalized else None
    rotation = GpuBackend(PROCESSORS, False).rotary(HeadsShape(8, 4, 128, 128), norms)
    query, key, value = rotation(heads.to(GPU), angles)
    [cache] = TritonAttention.allocate(KVCacheSpec((AttentionSpec(4, 128),), 16, dtype), 8, GPU)
    cache.fill_(torch.nan)
    slots = torch.randperm(8 * 16, generator=torch.Generator().manual_seed(9))[:50]
    slots[::7] = -1
    assert torch.equal(rotation.into_cache(heads.to(GPU), angles, cache, slots.to(GPU)), query)
    kept = slots[slots >= 0]
    places = cache[:, kept // 16, :, kept % 16].transpose(0, 1)  # [2, rows, Hkv, D]
    assert torch.equal(places.cpu(), torch.stack([key, value])[:, (slots >= 0).to(GPU)].cpu())
    assert (~cache.isnan()).sum() == 2 * len(kept) * 4 * 128


def test_integers_of_noise_are_the_same() -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 9, np.uint64, endpoint=False)[:, np.newaxis]
    ids = np.arange(150_000)
    made = noise.torch_random_bits(torch.from_numpy(keys.view(np.int64)).to(GPU), torch.from_numpy(ids).to(GPU))
    assert np.array_equal(made.cpu().numpy().view(np.uint64), noise.random_bits(keys, ids))
    gumbel = noise.torch_gumbel(torch.from_numpy(keys.view(np.int64)).to(GPU), torch.from_numpy(ids).to(GPU))
    np.testing.assert_allclose(gumbel.cpu().numpy(), noise.gumbel(keys, ids), rtol=1e-4, atol=1e-5)
