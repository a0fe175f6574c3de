"""The native kernels of ops, for every instruction set of this machine: right against float64, no output left
unwritten, and for each row the same bits whatever the other rows and the threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from engine_core.activation import Activation
from engine_core.attention.base import Angles
from engine_core.kernels import memory
from engine_core.kernels.library import Kernels
from engine_core.layers.rotary import RopeParameters, Rotary
from engine_core.ops.base import HeadNorms, HeadsShape
from engine_core.ops.native import NativeBackend
from engine_core.ops.native_linear import NativeLinear
from engine_core.ops.torch import TorchBackend
from engine_core.sampling.numpy_ops import NumpyOps

from .experts import numbers

pytestmark = pytest.mark.usefixtures("poisoned_memory")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(64, 16), (96, 64), (257, 2064), (160, 3008), (11, 48), (1, 16), (512, 1040)]
"""Outputs and inputs: whole tiles and parts of them, one part of the inputs and several."""
PRODUCTS = [
    pytest.param(n, k, residual, bias, marks=() if residual == bias or (n, k) in SHAPES[1:3] else pytest.mark.wide)
    for n, k in SHAPES
    for residual in (False, True)
    for bias in (False, True)
]
"""One of both without the other for a shape of each number of parts; with both and with neither for all."""
HEADS = [
    pytest.param(n, k, bias, marks=() if bias or (n, k) in SHAPES[1:3] else pytest.mark.wide)
    for n, k in [*SHAPES, (4000, 32)]
    for bias in (False, True)
]


@pytest.fixture
def ops(kernels: Kernels) -> NativeBackend:
    return NativeBackend(kernels)


def check_rows(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    torch.set_num_threads(1)
    alone = torch.cat([layer(x[row : row + 1].clone()) for row in range(len(x))])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in (1, 2, 3, 7, 16, 33, len(x)):
            for start in (0, 1, 5):
                y = layer(x[start : start + rows].clone())
                assert torch.equal(y, alone[start : start + rows]), (threads, rows, start)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k", "residual", "bias"), PRODUCTS)
def test_product(ops: NativeBackend, n: int, k: int, residual: bool, bias: bool, dtype: torch.dtype) -> None:
    weight, offset = numbers(n, k, dtype=dtype), numbers(n, dtype=dtype, seed=1)
    linear = ops.linear(weight, offset if bias else None)
    for rows in (1, 2, 7, 40):
        x, beside = numbers(rows, k, dtype=dtype, seed=rows), numbers(rows, n, dtype=dtype, seed=9)
        expected = (
            x.double() @ weight.double().T + (offset.double() if bias else 0) + (beside.double() if residual else 0)
        )
        magnitude = (x.double().abs() @ weight.double().abs().T).max().item()
        for wanted in (dtype, torch.float32):
            y = linear(x, residual=beside if residual else None, dtype=wanted)
            assert y.dtype == wanted
            tolerance = {"atol": 2**-22 * magnitude + 1e-6, "rtol": torch.finfo(wanted).eps}
            torch.testing.assert_close(y.double(), expected, **tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(257, 2064), (512, 1040), (1100, 2064)])  # the last: several batches of tiles
def test_rows_of_products_have_the_same_bits_in_every_batch(
    ops: NativeBackend, n: int, k: int, dtype: torch.dtype
) -> None:
    check_rows(ops.linear(numbers(n, k, dtype=dtype), numbers(n, dtype=dtype)), numbers(210, k, dtype=dtype, seed=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_row_poisons_another(ops: NativeBackend, dtype: torch.dtype) -> None:
    linear = ops.linear(numbers(80, 32, dtype=dtype))
    x = numbers(9, 32, dtype=dtype)
    clean = linear(x)
    x[3], x[7, 5] = torch.nan, torch.inf
    y = linear(x)
    assert y[3].isnan().all()
    assert not y[7].isfinite().any()
    others = [0, 1, 2, 4, 5, 6, 8]
    assert torch.equal(y[others], clean[others])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k", "bias"), HEADS)
def test_argmax_is_where_products_are_greatest(
    ops: NativeBackend, n: int, k: int, bias: bool, dtype: torch.dtype
) -> None:
    head = ops.linear(numbers(n, k, dtype=dtype), numbers(n, dtype=dtype, seed=1) if bias else None)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in (1, 2, 7, 200):
            x = numbers(rows, k, dtype=dtype, seed=rows)
            expected = head(x, dtype=torch.float32).numpy().argmax(axis=1)
            assert head.greatest(x).ids.tolist() == expected.tolist()
            places, values = head.greatest(x)
            assert torch.equal(values, head(x, dtype=torch.float32)[torch.arange(len(x)), places])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [1, 65, 600])
def test_of_equal_products_the_first_is_taken_and_padding_never(
    ops: NativeBackend, outputs: int, dtype: torch.dtype
) -> None:
    torch.set_num_threads(2)
    weight = torch.full((outputs, 16), -1.0, dtype=dtype)
    weight[outputs // 2 :: 7] = -0.5
    x = torch.ones(5, 16, dtype=dtype)
    x[1] = torch.nan
    x[2] = torch.inf  # all outputs are −∞
    assert ops.linear(weight).greatest(x).ids.tolist() == [outputs // 2, 0, 0, outputs // 2, outputs // 2]
    weight[outputs // 3, 3] = torch.nan
    assert ops.linear(weight).greatest(x).ids.tolist() == [outputs // 3, 0] + 3 * [outputs // 3]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [1, 64, 97, 4000])
def test_argmax_of_what_is_allowed_is_that_of_masked_logits(
    ops: NativeBackend, outputs: int, dtype: torch.dtype
) -> None:
    """Of rows with few, many or all outputs allowed, or none; with infinities, NaNs and equals among them."""
    head, rows = ops.linear(numbers(outputs, 16, dtype=dtype).mul(4).round()), 120
    x = numbers(rows, 16, dtype=dtype, seed=1).round()
    x[3::11, 2], x[5::11, 3], x[7::11] = torch.inf, torch.nan, 0.0
    rng, words = np.random.default_rng(outputs), -(-outputs // 32)
    shares = rng.choice([0.0, 0.002, 0.5, 0.99, 1.0], rows)
    bits = np.packbits(rng.random((rows, 32 * words)) < shares[:, np.newaxis], axis=1, bitorder="little")
    allowed = bits.view(np.uint32)
    logits = head(x, dtype=torch.float32)
    greatest = logits.numpy().max(axis=1)
    NumpyOps(outputs).mask(logits.numpy(), np.arange(rows), allowed)
    expected = logits.numpy().argmax(axis=1)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        ids, values = head.greatest(x, torch.from_numpy(allowed.view(np.int32)))
        assert ids.tolist() == expected.tolist()
        np.testing.assert_array_equal(values.numpy(), greatest)  # of all outputs
    assert head.greatest(x).ids.tolist() == head(x, dtype=torch.float32).numpy().argmax(axis=1).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_rows_of_the_weight_can_be_read_back(ops: NativeBackend, n: int, k: int, dtype: torch.dtype) -> None:
    table = numbers(n, k, dtype=dtype)
    head = ops.linear(table)
    ids = torch.randint(0, n, (50,))
    assert torch.equal(head.weight_rows(ids), table[ids])


def test_only_the_packed_weight_is_kept_in_huge_pages(ops: NativeBackend) -> None:
    weight = numbers(2048, 1024, dtype=torch.bfloat16)
    linear = ops.linear(weight)
    assert isinstance(linear, NativeLinear)
    assert linear.nbytes == weight.nbytes
    assert linear._weights.packed.data_ptr() % memory._HUGE_PAGE == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 1008, 2048])
def test_norm(ops: NativeBackend, width: int, dtype: torch.dtype) -> None:
    x, weight = 3 * numbers(50, width, dtype=dtype), numbers(width, dtype=dtype, seed=1)
    norm = ops.norm(weight.float(), None, 1e-5, width)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(norm(x).double(), exact, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    check_rows(norm, x)
    check_rows(norm, numbers(400, width, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [each for each in Activation if each is not Activation.CLAMPED_SWIGLU])
@pytest.mark.parametrize("width", [16, 1008, 2304])
def test_activations_with_and_without_a_gate(
    ops: NativeBackend, width: int, activation: Activation, dtype: torch.dtype
) -> None:
    x = 4 * numbers(50, 2 * width, dtype=dtype)
    gate, up = x.double().chunk(2, dim=-1)
    tolerance = {"atol": 1e-5, "rtol": 2 * torch.finfo(dtype).eps}
    gated, alone = (partial(function, activation=activation) for function in (ops.act_and_mul, ops.activate))
    torch.testing.assert_close(gated(x).double(), activation(gate) * up, **tolerance)
    torch.testing.assert_close(alone(x).double(), activation(x.double()), **tolerance)
    check_rows(gated, x)
    check_rows(alone, x)


@pytest.mark.parametrize("activation", [each for each in Activation if each is not Activation.CLAMPED_SWIGLU])
def test_activations_of_far_values(ops: NativeBackend, activation: Activation) -> None:
    gate = torch.tensor([-math.inf, -1e30, -200.0, 200.0, 1e30, math.inf, math.nan, 0.0] * 2)
    values = ops.act_and_mul(torch.cat([gate, torch.ones(16)])[None], activation)[0, :8]
    assert (values[1:3].abs() < 1e-6).all()
    limits = {Activation.SIGMOID: torch.ones(3), Activation.RELU2: gate[3:6].square()}
    assert torch.equal(values[3:6], limits.get(activation, gate[3:6]))
    assert values[6].isnan()
    assert values[7] == (0.5 if activation is Activation.SIGMOID else 0.0)


ROTATIONS = [
    (HeadsShape(4, 2, 64, 64), "plain"),
    (HeadsShape(3, 1, 16, 16), "small"),
    (HeadsShape(2, 2, 80, 80, interleaved=True), "interleaved"),
    (HeadsShape(1, 1, 1024, 1024), "largest"),
    (HeadsShape(3, 2, 38, 38), "padded"),
    (HeadsShape(3, 2, 38, 14), "partial and padded"),
    (HeadsShape(4, 2, 64, 32, interleaved=True), "partial and interleaved"),
    (HeadsShape(4, 2, 64, 0), "not at all"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalized", ["", "queries and keys", "values too"])
@pytest.mark.parametrize("shape", [shape for shape, _ in ROTATIONS], ids=[name for _, name in ROTATIONS])
def test_rotation_equals_torch(ops: NativeBackend, shape: HeadsShape, normalized: str, dtype: torch.dtype) -> None:
    split = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
    x = numbers(400, sum(split), shape.head_dim, dtype=dtype)
    query, key, value = (numbers(shape.head_dim, dtype=torch.float32, seed=seed) for seed in (1, 2, 3))
    norms = HeadNorms(query, key, value if normalized == "values too" else None, 1e-6) if normalized else None
    angles = None
    if shape.rotary_dim:
        rope = RopeParameters("default", 1e4, shape.rotary_dim)
        angles = Rotary(rope, 400 * 7, torch.device("cpu")).angles(torch.arange(400) * 7)
        angles = angles._replace(query_scales=1 + numbers(400, 1, 1, dtype=torch.float32, seed=4).abs())
    rotation, padding = ops.rotary(shape, norms), ops.padded(shape.head_dim) - shape.head_dim
    expected = TorchBackend().rotary(shape, norms)(x, angles)
    padded = torch.nn.functional.pad(x, (0, padding))
    given = padded.clone()
    for actual, wanted in zip(rotation(given, angles), expected, strict=True):
        torch.testing.assert_close(actual[..., : shape.head_dim], wanted, atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
        assert not actual[..., shape.head_dim :].any()
    torch.set_num_threads(3)
    for row in (0, 7, 399):
        own = None if angles is None else Angles(*(angle[row : row + 1] for angle in angles))
        alone = rotation(padded[row : row + 1].clone(), own)
        for actual, wanted in zip(alone, torch.split(given[row : row + 1], split, 1), strict=True):
            assert torch.equal(actual, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [40, 1008])
def test_layer_norm(ops: NativeBackend, width: int, dtype: torch.dtype) -> None:
    x, residual = 3 + 2 * numbers(50, width, dtype=dtype), numbers(50, width, dtype=dtype, seed=3)
    weight, bias = (numbers(width, dtype=torch.float32, seed=seed) for seed in (1, 2))
    exact = torch.nn.functional.layer_norm(x.double(), (width,), weight.double(), bias.double(), 1e-5)
    x, residual, weight, bias = (
        torch.nn.functional.pad(each, (0, ops.padded(width) - width)) for each in (x, residual, weight, bias)
    )
    norm = ops.norm(weight, bias, 1e-5, width)
    tolerance = {"atol": 2e-5, "rtol": 2 * torch.finfo(dtype).eps}
    torch.testing.assert_close(norm(x)[:, :width].double(), exact, **tolerance)
    assert not norm(x)[:, width:].any()
    added = norm(x, residual=residual)[:, :width].double()
    torch.testing.assert_close(added, exact + residual[:, :width].double(), **tolerance)
    check_rows(norm, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_padded_rows_in_place_and_with_a_residual(ops: NativeBackend, dtype: torch.dtype) -> None:
    x, weight, residual = (
        numbers(*size, dtype=dtype, seed=seed) for seed, size in enumerate([(9, 40), (40,), (9, 40)])
    )
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    x, weight, residual = (torch.nn.functional.pad(each, (0, 8)) for each in (x, weight, residual))
    norm = ops.norm(weight.float(), None, 1e-5, 40)
    tolerance = {"atol": 1e-5, "rtol": 2 * torch.finfo(dtype).eps}
    added = norm(x, residual=residual)
    torch.testing.assert_close(added[:, :40].double(), exact + residual[:, :40].double(), **tolerance)
    beside = torch.cat([numbers(9, 16, dtype=dtype), x, numbers(9, 16, dtype=dtype)], dim=1)
    before = beside.clone()
    norm(beside[:, 16:64], in_place=True)
    torch.testing.assert_close(beside[:, 16:56].double(), exact, **tolerance)
    assert not beside[:, 56:64].any()
    assert torch.equal(beside[:, :16], before[:, :16])
    assert torch.equal(beside[:, 64:], before[:, 64:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_groups_scaled(ops: NativeBackend, dtype: torch.dtype) -> None:
    """Each group on its own, with a residual, in rows that lie apart: as torch does, and row by row the same bits."""
    shape, weight = (30, 5, 48), numbers(48, dtype=torch.float32, seed=1)
    x, residual = numbers(30, 6 * 48, dtype=dtype)[:, :240].view(shape), numbers(*shape, dtype=dtype, seed=2)
    norm, reference = (backend.norm(weight, None, 1e-5, 48, 0.7) for backend in (ops, TorchBackend()))
    made = norm(x, residual=residual)
    assert made.shape == shape
    torch.testing.assert_close(made, reference(x, residual=residual), atol=1e-5, rtol=2 * torch.finfo(dtype).eps)
    for row in (0, 29):
        assert torch.equal(norm(x[row : row + 1], residual=residual[row : row + 1]), made[row : row + 1])
        flat = norm(x[row].contiguous(), residual=residual[row])
        assert torch.equal(flat, made[row])


@pytest.mark.parametrize("dtype", DTYPES)
def test_activation_times_and_selection_of_rows_that_lie_apart(ops: NativeBackend, dtype: torch.dtype) -> None:
    x, factors = numbers(9, 96, dtype=dtype), numbers(9, 160, dtype=dtype, seed=1)[:, 32:128]
    made = ops.activate(x, Activation.GELU_TANH, factors)
    assert torch.equal(made, ops.act_and_mul(torch.cat([x, factors], dim=1), Activation.GELU_TANH))
    rows = torch.tensor([7, 0, 3])
    assert torch.equal(ops.select_rows(factors, rows), factors[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_of_rows(ops: NativeBackend, dtype: torch.dtype) -> None:
    x, residual = (numbers(50, 1008, dtype=dtype, seed=seed) for seed in (1, 2))
    logits = 4 * numbers(50, 1, dtype=torch.float32, seed=3)
    exact_sum = residual.double() + logits.double().sigmoid() * x.double()
    tolerance = {"atol": 1e-5, "rtol": 2 * torch.finfo(dtype).eps}
    for backend in (ops, TorchBackend()):
        torch.testing.assert_close(backend.add_gated(x, logits, residual).double(), exact_sum, **tolerance)
