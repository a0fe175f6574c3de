"""Every kernel against its torch form, at three shapes; and bit for bit over chunks and batches.

A configuration takes a compiler seconds: by default there are few types, and the rest is wide.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from engine_core.activation import Activation
from engine_core.attention import triton as triton_attention
from engine_core.attention.base import Angles, KVCacheSpec
from engine_core.attention.triton import TritonAttention
from engine_core.kv_cache_interface import AttentionSpec
from engine_core.ops import gpu_states
from engine_core.ops.base import HeadNorms, HeadsShape
from engine_core.ops.gpu import GpuBackend
from engine_core.ops.states import RecurrenceParameters, StateOps
from engine_core.ops.torch import TorchBackend
from engine_core.platforms.cuda_graphs import CudaGraphRecorder
from engine_core.sampling import noise
from engine_core.states.base import LayerState, StateMetadata
from engine_core.weights.experts import ExpertsShape, ExpertWeights
from engine_core.weights.quantized_weight import FP4, SIGNED6, SIGNED8, UNSIGNED4, Offset, QuantFormat
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
from tests.engine_core.ops.lora_layers import Layer, Part, Shape, places_of
from tests.engine_core.ops.quantized_weights import random_weight
from tests.engine_core.ops.state_steps import States
from tests.gpu.device import DEVICE, ON_CARD, PROCESSORS, WIDE, needs_card, sized

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = [torch.bfloat16, *(pytest.param(dtype, marks=WIDE) for dtype in (torch.float32, torch.float16))]
ONE_TYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
TWO_TYPES = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float32, pytest.param(torch.float16, marks=WIDE)], ids=str
)
OPS = GpuBackend(PROCESSORS, deterministic=True, device=DEVICE)
LIBRARY = GpuBackend(PROCESSORS, deterministic=False, device=DEVICE)
REFERENCE = TorchBackend()


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def on_device(*shape: int, dtype: torch.dtype, seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return numbers(*shape, dtype=dtype, seed=seed, size=size).to(DEVICE)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an interpreter's short sequences have several splits, and its small states several tiles."""
    if not ON_CARD:
        monkeypatch.setattr(triton_attention, "_SHORTEST_SPLIT", 32)
        monkeypatch.setattr(gpu_states, "_STATE_PER_WARP", 512)
        monkeypatch.setattr(gpu_states, "_ROWS_TOGETHER", 4)


GEOMETRIES = sized(
    [
        (Geometry(32, 8, 128, 16), torch.bfloat16),
        (Geometry(14, 2, 64, 64), torch.bfloat16),
        (Geometry(8, 8, 80, 16), torch.float32),
        *(pytest.param(Geometry(32, 8, 128, 16), dtype, marks=WIDE) for dtype in (torch.float32, torch.float16)),
        *(
            pytest.param(geometry, dtype, marks=WIDE)
            for geometry in (Geometry(16, 8, 128, 32), Geometry(28, 4, 128, 16), Geometry(16, 1, 256, 16))
            for dtype in TOLERANCE
        ),
    ],
    [(Geometry(2, 1, 32, 16), torch.float32), (Geometry(7, 1, 80, 32), torch.bfloat16)],
)
LENGTHS = sized([1, 17, 130, 300, 700], [1, 40])
LIMITED: dict[str, Any] = {"window": sized(200, 20), "softcap": 5.0}
WAYS = [(False, {}), (True, LIMITED), pytest.param(True, {}, marks=WIDE), pytest.param(False, LIMITED, marks=WIDE)]


@pytest.mark.parametrize(("geometry", "dtype"), GEOMETRIES, ids=str)
@pytest.mark.parametrize(("uniform", "limits"), WAYS, ids=["plain", "uniform-limited", "uniform", "limited"])
def test_attention_in_random_steps(
    geometry: Geometry, dtype: torch.dtype, uniform: bool, limits: dict[str, Any]
) -> None:
    """Chunks, single rows and joined splits; in a window, with sinks and capped scores; and writes to the cache."""
    sequences = make_sequences(LENGTHS, geometry, dtype, seed=1)
    sinks = torch.linspace(-20, 20, geometry.num_heads) if limits else None
    backend = TritonAttention(1024, PROCESSORS, uniform)
    run = Run(
        backend, geometry, sequences, seed=2, device=DEVICE, sinks=None if sinks is None else sinks.to(DEVICE), **limits
    )
    assert_right(run.in_random_steps(random.Random(3)), sequences, TOLERANCE[dtype], sinks=sinks, **limits)


@pytest.mark.parametrize("window", [None, pytest.param(300, marks=WIDE)])
@ONE_TYPE
def test_uniform_attention_gives_equal_bits_however_rows_are_cut_and_batched(
    dtype: torch.dtype, window: int | None
) -> None:
    geometry = sized(Geometry(16, 4, 128, 16), Geometry(2, 1, 32, 16))
    sequences = make_sequences(sized([5, 600, 1000], [3, 40]), geometry, dtype, seed=3)
    backend = TritonAttention(1024, PROCESSORS, uniform=True)
    expected = Run(backend, geometry, sequences, device=DEVICE, window=window).at_once()
    run = Run(backend, geometry, sequences, seed=1, device=DEVICE, window=window)
    assert_equal(run.in_random_steps(random.Random(4)), expected)


LATENTS = sized(
    [Sizes(16, 512, 64, 16), pytest.param(Sizes(20, 512, 64, 64), marks=WIDE), Sizes(4, 128, 32, 16)],
    [Sizes(4, 32, 16, 16), Sizes(3, 48, 32, 8)],
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=WIDE)], ids=str)
@pytest.mark.parametrize("sizes", LATENTS, ids=str)
def test_latents(sizes: Sizes, dtype: torch.dtype) -> None:
    sequences = make_latents(sized([1, 17, 300, 700], [1, 36]), sizes, dtype)
    backend = TritonAttention(1024, PROCESSORS, uniform=True)
    alone = Run(backend, sizes, sequences, device=DEVICE).at_once()
    assert_right(alone, sequences, TOLERANCE[dtype], TOLERANCE[dtype])
    assert_equal(Run(backend, sizes, sequences, seed=1, device=DEVICE).in_random_steps(random.Random(2)), alone)


PRODUCTS = sized(
    [(4096, 4096), (1000, 1000), (18000, 512), pytest.param(28672, 4096, marks=WIDE)],
    [(96, 128), (70, 72)],
)


@TWO_TYPES
@pytest.mark.parametrize(("outputs", "inputs"), PRODUCTS)
def test_own_products(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    """With a residual, and bit for bit in any batch; with a bias, into float32."""
    rows, own = sized(300, 70), sized(((0, 1), (7, 9), (299, 300), (0, 64), (100, 229)), ((0, 1), (60, 66)))
    weight = on_device(outputs, inputs, dtype=dtype, seed=1, size=inputs**-0.5)
    bias = on_device(outputs, dtype=dtype, seed=4)
    x, residual = on_device(rows, inputs, dtype=dtype, seed=2), on_device(rows, outputs, dtype=dtype, seed=3)
    layer, product = OPS.linear(weight), x.double() @ weight.double().T
    together = layer(x, residual=residual)
    close(together, product + residual.double(), dtype)
    close(OPS.linear(weight, bias)(x, dtype=torch.float32), product + bias.double(), dtype)
    for first, last in own:
        assert torch.equal(layer(x[first:last], residual=residual[first:last]), together[first:last])


@TWO_TYPES
def test_products_by_the_library(dtype: torch.dtype) -> None:
    """In all ways in which layers ask for them; a residual is overwritten."""
    weight, bias = on_device(96, 128, dtype=dtype, seed=4, size=0.1), on_device(96, dtype=dtype, seed=5)
    x, residual = on_device(50, 128, dtype=dtype), on_device(50, 96, dtype=dtype, seed=6)
    product = x.double() @ weight.double().T
    layer = LIBRARY.linear(weight, bias)
    close(layer(x), product + bias, dtype)
    close(layer(x, dtype=torch.float32, scale=0.5), (product + bias) / 2, dtype)
    close(layer(x, residual=residual.clone(), scale=0.5), (product + bias) / 2 + residual, dtype)
    close(layer(x, into=torch.empty_like(residual)), product + bias, dtype)
    groups, inputs = on_device(3, 40, 32, dtype=dtype, seed=7, size=0.2), on_device(6, 3, 48, dtype=dtype)[..., :32]
    for layers in (OPS, LIBRARY):
        close(layers.grouped_linear(groups)(inputs), REFERENCE.grouped_linear(groups)(inputs), dtype)


ADAPTED, ADAPTED_SIDE_BY_SIDE = sized(
    (Shape(0, 4096, 6144), Shape(16, 128, 512, 1, 16)), (Shape(0, 208, 200), Shape(2, 64, 200, 1, 2))
)


def adapters_of(shape: Shape) -> list[list[Part]]:
    """Mixed ranks, outputs that no part has between those of parts, and parts of few columns and of many."""
    end = shape.outputs
    fused = [Part(range(end // 2), 16), Part(range(end // 2, end - 50), 5), Part(range(end - 50, end), 40)]
    scattered = [Part([*range(16), *range(24, 40), *range(41, 49, 2)], 33), Part([17, end - 1], 3)]
    return [fused, [Part(range(end), 8)], [Part(range(30, 37), 1)], scattered]


@pytest.mark.parametrize("shape", [ADAPTED, pytest.param(ADAPTED_SIDE_BY_SIDE, marks=WIDE)], ids=["linear", "grouped"])
@TWO_TYPES
def test_adapters(shape: Shape, dtype: torch.dtype) -> None:
    """Among rows of others and of none, and bit for bit alone; strided, and into float32."""
    count, adapters = sized(300, 50), adapters_of(shape)
    made, by_torch = (Layer.make(ops, shape, adapters, dtype) for ops in (OPS.lora_ops(), REFERENCE.lora_ops()))
    places = [*places_of(count - 40, len(adapters)), *[0] * 40]
    for wide in (False, True):
        x = shape.numbers(count, shape.inputs + 16, dtype, seed=1)[..., 16:]
        y = shape.numbers(count, shape.outputs + 8, torch.float32 if wide else dtype, seed=2)[..., 3:-5]
        expected = by_torch.added(x, y, by_torch.step(places), 0.75)
        x, y = x.to(DEVICE), y.to(DEVICE)
        together = made.added(x, y, made.step(places), 0.75)
        close(together.cpu(), expected, dtype)
        untouched = [row for row, place in enumerate(places) if place < 0]
        assert torch.equal(together[untouched], y[untouched])
        for row in (0, count // 2, count - 1):
            alone, own = made.step(places[row : row + 1], order=[max(0, places[row])]), slice(row, row + 1)
            assert torch.equal(made.added(x[own], y[own], alone, 0.75), together[own])


@needs_card
@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
def test_captured_launches_add_what_adapters_of_each_step_add(dtype: torch.dtype) -> None:
    """They come and go between replays; a step may have fewer rows than are captured."""
    made = Layer.make(OPS.lora_ops(), ADAPTED, adapters_of(ADAPTED), dtype)
    x, y = (on_device(8, width, dtype=dtype, seed=width) for width in ADAPTED[1:3])
    with made.ops.rehearsing(8, ranks=96):
        graph = CudaGraphRecorder().record(lambda: made.op(x, y))
    for places in ([3], [1, -1, 3, 0, 0, 2, 1, 3], [-1, -1], [2, 2, 2]):
        kept, rows = y.clone(), len(places)
        step = made.step(places, order=sorted({place for place in places if place >= 0}, reverse=True))
        with made.ops.computing(step):
            graph.replay()
        assert torch.equal(y[:rows], made.added(x[:rows], kept[:rows], step))
        assert torch.equal(y[rows:], kept[rows:])


FLOAT8 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())
FORMATS = {
    "AWQ": QuantFormat(UNSIGNED4, 128, torch.float16, offset=Offset.ZERO),
    "8 bits": QuantFormat(SIGNED8, 128, torch.float32),
    "FP8": QuantFormat(FLOAT8, 128, torch.float32),
    "MXFP4": QuantFormat(FP4, 32, torch.bfloat16),
    "Q4_K": QuantFormat(UNSIGNED4, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM),
    "Q6_K": QuantFormat(SIGNED6, 16, torch.float16, outer_size=256),
}
QUANTIZED = sized([(512, 1024), (1000, 1000), (4096, 4096)], [(70, 200)])


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, *(pytest.param(each, marks=WIDE) for each in (torch.float16, torch.float32))], ids=str
)
@pytest.mark.parametrize("kept", FORMATS.values(), ids=FORMATS)
def test_what_stays_quantized_is_multiplied_as_the_expanded_weight(kept: QuantFormat, dtype: torch.dtype) -> None:
    for outputs, inputs in QUANTIZED:
        size, order = inputs**-0.5, torch.randperm(inputs, generator=torch.Generator().manual_seed(3))
        weight = random_weight(kept, outputs, inputs)
        parts = [weight.each(lambda tensor: tensor[:40]), weight.each(lambda tensor: tensor[40:])]
        bias = on_device(outputs, dtype=dtype, seed=1)
        x, residual = on_device(9, inputs, dtype=dtype, size=size), on_device(9, outputs, dtype=dtype, seed=2)
        made = OPS.quantized_linear(kept, outputs, inputs, dtype, iter(parts), bias, order)
        expanded = weight.dequantized().to(dtype).to(DEVICE)
        product = x[:, order.to(DEVICE)].double() @ expanded.double().T + bias
        y = made(x, residual=residual)
        close(y, product + residual, dtype)
        assert torch.equal(made(x[3:4], residual=residual[3:4]), y[3:4])
        some = torch.tensor([outputs - 1, 0, 40], device=DEVICE)
        assert torch.equal(made.weight_rows(some), expanded[some][:, order.argsort().to(DEVICE)])


EXPERTS = sized(
    [
        ExpertsShape(16, 4, 1024, 768, Activation.SILU),
        ExpertsShape(32, 4, 720, 360, Activation.CLAMPED_SWIGLU, bias=True, swiglu_limit=7.0, swiglu_alpha=1.702),
        ExpertsShape(37, 5, 80, 96, Activation.GELU_TANH),
        pytest.param(ExpertsShape(128, 8, 2048, 768, Activation.SILU), marks=WIDE),
    ],
    [ExpertsShape(6, 3, 48, 40, Activation.CLAMPED_SWIGLU, bias=True, swiglu_limit=1.5, swiglu_alpha=1.7)],
)


@ONE_TYPE
@pytest.mark.parametrize("shape", EXPERTS, ids=lambda shape: str(shape.num_experts))
def test_experts(shape: ExpertsShape, dtype: torch.dtype) -> None:
    rows = sized(300, 7)
    made = load(OPS.experts(shape, dtype), shape, dtype)
    reference = REFERENCE.experts(shape, torch.float32)
    weights = (weights_of(shape, expert, dtype) for expert in range(shape.num_experts))
    reference.load(
        ExpertWeights(
            iter([each.float().to(DEVICE) for each in tensors]),
            biases and (biases[0].to(DEVICE), biases[1].to(DEVICE), biases[2].to(DEVICE)),
        )
        for tensors, biases in weights
    )
    x = on_device(rows, shape.hidden_size, dtype=dtype, seed=1)
    ids, shares = (each.to(DEVICE) for each in chosen(shape, rows, seed=2))
    y = made(x, ids, shares, x)
    expected, most = reference(x.float(), ids, shares, x.float()), 4 * TOLERANCE[dtype]
    torch.testing.assert_close(y.float(), expected, atol=most, rtol=most)
    for first, last in ((0, 1), (rows // 3, rows // 2)):
        part = [each[first:last] for each in (x, ids, shares)]
        assert torch.equal(made(*part, part[0]), y[first:last])


@ONE_TYPE
@pytest.mark.parametrize("width", sized([128, 1000, 4096], [64, 200]))
def test_norms(width: int, dtype: torch.dtype) -> None:
    x, residual = (on_device(sized(50, 3), width, dtype=dtype, seed=seed) for seed in (0, 3))
    weight, bias = (on_device(width, dtype=torch.float32, seed=seed) for seed in (1, 2))
    for arguments in ((weight, None), (weight, bias)):
        made, expected = (layers.norm(*arguments, 1e-5, width) for layers in (OPS, REFERENCE))
        close(made(x, residual=residual), expected(x, residual=residual), dtype)
        close(made(x.clone(), in_place=True), expected(x), dtype)


@ONE_TYPE
@pytest.mark.parametrize("activation", [each for each in Activation if each is not Activation.CLAMPED_SWIGLU])
def test_activations(activation: Activation, dtype: torch.dtype) -> None:
    for width in sized((1100, 64, 14336), (1100,)):
        x = 3 * on_device(sized(50, 2), 2 * width, dtype=dtype)
        close(OPS.act_and_mul(x, activation), REFERENCE.act_and_mul(x, activation), dtype)
        close(OPS.activate(x, activation), REFERENCE.activate(x, activation), dtype)


HEADS = {
    "plain": HeadsShape(*sized((8, 4, 128, 128), (4, 2, 64, 64))),
    "partial": HeadsShape(3, 1, 80, 24),
    "interleaved": HeadsShape(2, 2, 64, 32, interleaved=True),
    "unrotated": HeadsShape(4, 2, 64, 0),
}


def angles_of(shape: HeadsShape, rows: int) -> Angles | None:
    if shape.rotary_dim == 0:
        return None
    angles = on_device(rows, 1, shape.rotary_dim // 2, dtype=torch.float32, seed=8)
    scales = 1 + on_device(rows, 1, 1, dtype=torch.float32, seed=5).abs() if shape.interleaved else None
    return Angles(angles.cos(), angles.sin(), scales)


@ONE_TYPE
@pytest.mark.parametrize("normalized", ["", "values too", pytest.param("queries and keys", marks=WIDE)])
@pytest.mark.parametrize("shape", HEADS.values(), ids=HEADS)
def test_rotation(shape: HeadsShape, normalized: str, dtype: torch.dtype) -> None:
    """In place, and into the cache: there are the same bits, and nothing else is written."""
    rows, blocks, norm = sized(50, 4), 8, partial(on_device, shape.head_dim, dtype=torch.float32)
    heads = on_device(rows, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim, dtype=dtype, seed=7)
    value_norm = norm(seed=3) if normalized == "values too" else None
    norms = HeadNorms(norm(seed=1), norm(seed=2), value_norm, 1e-6) if normalized else None
    angles, rotation = angles_of(shape, rows), OPS.rotary(shape, norms)
    query, key, value = rotation(heads.clone(), angles)
    expected = REFERENCE.rotary(shape, norms)(heads.clone(), angles)
    for one, other in zip((query, key, value), expected, strict=True):
        close(one, other, dtype)
    spec = KVCacheSpec((AttentionSpec(shape.num_kv_heads, shape.head_dim),), 16, dtype)
    [cache] = TritonAttention.allocate(spec, blocks, DEVICE)
    cache.fill_(torch.nan)
    slots = torch.randperm(blocks * 16, generator=torch.Generator().manual_seed(9))[:rows]
    slots[::3] = -1
    assert torch.equal(rotation.into_cache(heads.clone(), angles, cache, slots.to(DEVICE)), query)
    is_kept = slots >= 0
    kept = slots[is_kept].to(DEVICE)
    places = cache[:, kept // 16, :, kept % 16].transpose(0, 1)  # [2, rows, Hkv, D]
    assert torch.equal(places, torch.stack([key, value])[:, is_kept.to(DEVICE)])
    assert (~cache.isnan()).sum() == 2 * len(kept) * shape.num_kv_heads * shape.head_dim


STATES = States(sized([300, 1, 40, 200], [4, 1, 3]), sized(16, 2))
CONVOLUTIONS = {"gated": (3, False, True), "with SiLU and a bias": (4, True, False)}
"""Taps, whether there are SiLU and a bias, and whether there are gates."""


@ONE_TYPE
@pytest.mark.parametrize(("taps", "silu", "gated"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_short_convolutions(taps: int, silu: bool, gated: bool, dtype: torch.dtype) -> None:
    """In all slots, and bit for bit in random steps."""
    channels, rows = sized(2000, 40 if gated else 70), sum(STATES.lengths)
    x, gate, output_gate = on_device(rows, 3 * channels, dtype=dtype).split(channels, 1)
    weight, bias = (on_device(*shape, dtype=torch.float32, seed=2) for shape in ((taps, channels), (channels,)))
    before = on_device(STATES.num_slots, taps - 1, channels, dtype=dtype, seed=3)

    def compute(ops: StateOps, state: LayerState, some: torch.Tensor, metadata: StateMetadata) -> torch.Tensor:
        own, first, last = torch.cat([x, gate, output_gate], 1)[some.to(DEVICE)].split(channels, 1)
        gates = (first, last) if gated else (None, None)
        return ops.short_convolution(
            own, weight, bias if silu else None, state, metadata.on(DEVICE), silu=silu, gate=gates[0],
            output_gate=gates[1],
        )  # fmt: skip

    expected, state, again = (LayerState(before.clone(), None) for _ in range(3))
    wanted, slots = STATES.at_once(partial(compute, StateOps(), expected))
    y, _ = STATES.at_once(partial(compute, OPS.state_ops(), state))
    close(y, wanted, dtype)
    close(state.conv, expected.conv, dtype)  # an interpreter cuts gated inputs off where a GPU rounds them
    if not gated:
        assert torch.equal(state.conv, expected.conv)
    same, last = STATES.in_random_steps(partial(compute, OPS.state_ops(), again), random.Random(5))
    assert torch.equal(same, y)
    assert torch.equal(again.conv[last], state.conv[slots])
    assert torch.equal(again.conv[STATES.snapshots], state.conv[STATES.snapshots])
    assert torch.equal(again.conv[-1], before[-1])


RECURRENCES = {
    "gated delta rule": (*sized((16, 32, 128, 128), (2, 4, 24, 12)), True),
    "Mamba-2": (*sized((8, 64, 128, 64), (1, 1, 32, 20)), False),
    "Mamba-2 of wide keys": pytest.param(*sized((1, 24, 256, 64), (1, 1, 96, 20)), False, marks=WIDE),
}
"""Heads of keys and values, the width of each, and whether it is the gated delta rule."""


@ONE_TYPE
@pytest.mark.parametrize(("groups", "heads", "key_dim", "value_dim", "delta"), RECURRENCES.values(), ids=RECURRENCES)
def test_recurrences(groups: int, heads: int, key_dim: int, value_dim: int, delta: bool, dtype: torch.dtype) -> None:
    """In all slots, and bit for bit in random steps."""
    rows, widths = sum(STATES.lengths), [groups * key_dim, groups * key_dim, heads * value_dim, heads, heads]
    x = on_device(rows, sum(widths), dtype=dtype)
    rates, biases, skips = (on_device(heads, dtype=torch.float32, seed=seed) for seed in (1, 2, 3))
    parameters = RecurrenceParameters(
        -rates.exp(), biases, None if delta else skips, key_dim**-0.5, *((1e-6,) if delta else (None, (0.1, 2.0)))
    )
    before = on_device(STATES.num_slots, heads, key_dim, value_dim, dtype=torch.float32, seed=4)

    def compute(ops: StateOps, state: LayerState, some: torch.Tensor, metadata: StateMetadata) -> torch.Tensor:
        query, key, value, decay, update = x[some.to(DEVICE)].split(widths, 1)
        query, key, value = (
            each.unflatten(1, (count, -1)) for each, count in ((query, groups), (key, groups), (value, heads))
        )
        inputs = query, key, value, decay, update if delta else None
        return ops.recurrence(*inputs, parameters, state, metadata.on(DEVICE))

    conv = before.new_empty(0)
    expected, state, again = (LayerState(conv, before.clone()) for _ in range(3))
    wanted, slots = STATES.at_once(partial(compute, StateOps(), expected))
    y, _ = STATES.at_once(partial(compute, OPS.state_ops(), state))
    same, last = STATES.in_random_steps(partial(compute, OPS.state_ops(), again), random.Random(6))
    close(y, wanted, dtype)
    assert state.recurrent is not None
    assert expected.recurrent is not None
    assert again.recurrent is not None
    close(state.recurrent, expected.recurrent, torch.float32)
    assert torch.equal(same, y)
    assert torch.equal(again.recurrent[last], state.recurrent[slots])
    assert torch.equal(again.recurrent[STATES.snapshots], state.recurrent[STATES.snapshots])
    assert torch.equal(again.recurrent[-1], before[-1])


@ONE_TYPE
@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize(("groups", "width"), sized([(32, 128), (1, 1536), (8, 1000)], [(3, 24), (1, 200)]))
def test_gated_norms(groups: int, width: int, norm_before_gate: bool, dtype: torch.dtype) -> None:
    """Bit for bit for a single row, whose strides may be others."""
    rows, size = sized(50, 3), groups * (width + 8)
    both = on_device(rows, 2 * size + 8, dtype=dtype)
    x, gate = (each.unflatten(1, (groups, -1)) for each in (both[:, :size], both[:, size : 2 * size]))
    x[..., width:] = 0
    for shape in ((groups, width + 8), (1, width + 8)):
        weight = on_device(*shape, dtype=torch.float32, seed=1)
        made, expected = (
            ops.gated_norm(x, gate, weight, 1e-5, width, norm_before_gate=norm_before_gate)
            for ops in (OPS.state_ops(), StateOps())
        )
        close(made, expected, dtype)
        alone = gate[1:2].flatten(1).view(1, groups, -1)
        [one] = OPS.state_ops().gated_norm(x[1:2], alone, weight, 1e-5, width, norm_before_gate=norm_before_gate)
        assert torch.equal(one, made[1])


def test_noise_is_the_same() -> None:
    """Integers bit for bit; logarithms nearly."""
    keys = np.random.default_rng(0).integers(0, 2**64, 9, np.uint64, endpoint=False)[:, np.newaxis]
    of_torch = torch.from_numpy(keys.view(np.int64)).to(DEVICE)
    for count in (1, 199, 150_000):
        ids = np.arange(count)
        made = noise.torch_random_bits(of_torch, torch.from_numpy(ids).to(DEVICE))
        assert np.array_equal(made.cpu().numpy().view(np.uint64), noise.random_bits(keys, ids))
        gumbel = noise.torch_gumbel(of_torch, torch.from_numpy(ids).to(DEVICE))
        np.testing.assert_allclose(gumbel.cpu().numpy(), noise.gumbel(keys, ids), rtol=1e-4, atol=1e-5)
