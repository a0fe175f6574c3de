"""Experts whose weights stay quantized, by native kernels of every instruction set of this machine: right against
float64, and for each row the same bits whatever the other rows, the threads and the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from engine_core.activation import Activation
from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsOp, ExpertsSplit
from engine_core.ops.native import NativeBackend
from engine_core.ops.native_quantized_experts import NativeQuantizedExperts
from engine_core.ops.torch import TorchBackend
from engine_core.weights.experts import ExpertsShape, QuantizedExpertWeights
from engine_core.weights.quantized_weight import FP4, SIGNED6, UNSIGNED4, Offset, QuantFormat, QuantizedWeight

from .experts import activated, chosen, numbers
from .parts import by_kind, check_experts, check_replayed_experts
from .test_native_quantized import rows_of, weight_of

pytestmark = pytest.mark.usefixtures("poisoned_memory")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
MXFP4 = QuantFormat(FP4, 32, torch.bfloat16)
AWQ = QuantFormat(UNSIGNED4, 128, torch.float16, offset=Offset.ZERO)
Q4_K = QuantFormat(UNSIGNED4, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM)
Q6_K = QuantFormat(SIGNED6, 16, torch.float16, outer_size=256)
KINDS = {
    "MXFP4": (MXFP4, MXFP4),
    "AWQ": (AWQ, AWQ),
    "Q4_K_M": (Q4_K, Q6_K),
    "6 bits, then 4": (Q6_K, Q4_K),
}
SHAPES = {
    "few": ExpertsShape(4, 2, 64, 48, Activation.SILU),
    "limited, with biases": ExpertsShape(
        6, 3, 96, 80, Activation.CLAMPED_SWIGLU, bias=True, swiglu_limit=1.5, swiglu_alpha=1.7
    ),
    "several parts": ExpertsShape(2, 2, 1040, 272, Activation.GELU_TANH),
    "ungated": ExpertsShape(5, 2, 96, 112, Activation.RELU2, gated=False),
}
by_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


@pytest.fixture
def ops(kernels: Kernels) -> NativeBackend:
    return NativeBackend(kernels)


@cache
def expert_of(shape: ExpertsShape, kind: str, expert: int) -> tuple[tuple[QuantizedWeight, ...], torch.Tensor | None]:
    """Gate, if any, up and down, each with a spread of about its inputs' root; and all biases, one after the other."""
    gate_up, down = KINDS[kind]
    hidden, inner = shape.hidden_size, shape.intermediate_size
    sizes = *((gate_up, inner, hidden),) * shape.num_expanding, (down, hidden, inner)
    weights = [weight_of(*size, seed=3 * expert + place) for place, size in enumerate(sizes)]
    biases = numbers(2 * inner + hidden, dtype=torch.float32, seed=90 + expert) if shape.bias else None
    return tuple(spread(weight) for weight in weights), biases


def spread(weight: QuantizedWeight) -> QuantizedWeight:
    factor = weight.codes.shape[1] ** -0.5 / float(weight.dequantized().std())
    if weight.outer_scales is None:
        minima = None if weight.minima is None else weight.minima * factor
        return replace(weight, scales=weight.scales * factor, minima=minima)
    outer_minima = None if weight.outer_minima is None else weight.outer_minima * factor
    return replace(weight, outer_scales=weight.outer_scales * factor, outer_minima=outer_minima)


def make(
    ops: NativeBackend, kind: str, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None = None
) -> ExpertsOp:
    """The rows of weights come in parts."""
    own = shape.whole if split is None else split.own

    def parts(weight: QuantizedWeight, rows: range) -> Iterator[QuantizedWeight]:
        for first in range(rows.start, rows.stop, 24):
            yield rows_of(weight, slice(first, min(first + 24, rows.stop)))

    def part_of(expert: int) -> QuantizedExpertWeights:
        weights, biases = expert_of(shape, kind, expert)
        outputs = *(own.inner,) * shape.num_expanding, own.hidden
        if biases is None:
            return QuantizedExpertWeights(map(parts, weights, outputs))
        inner = shape.intermediate_size
        gate, up, down = biases.split([inner, inner, shape.hidden_size])
        owned = gate[own.inner], up[own.inner], down[own.hidden]
        return QuantizedExpertWeights(map(parts, weights, outputs), owned)

    experts = ops.quantized_experts(shape, *KINDS[kind], dtype, map(part_of, own.experts), split)
    assert isinstance(experts, NativeQuantizedExperts)
    return experts


def exact(shape: ExpertsShape, kind: str, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """In float64."""
    output = torch.zeros_like(x, dtype=torch.float64)
    for expert in range(shape.num_experts):
        tensors, biases = expert_of(shape, kind, expert)
        *expanding, down = (weight.dequantized().double() for weight in tensors)
        sizes = [len(weight) for weight in (*expanding, down)]
        *added, of_down = torch.zeros(sum(sizes)).split(sizes) if biases is None else biases.split(sizes)
        rows, places = torch.nonzero(ids == expert, as_tuple=True)
        given = x[rows].double()
        inner = activated(shape, *(given @ each.T + bias for each, bias in zip(expanding, added, strict=True)))
        output.index_add_(0, rows, weights[rows, places, None].double() * (inner @ down.T + of_down))
    return output


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        pytest.param(kind, shape, id=f"{kind}-{name}", marks=() if i % 4 == j else pytest.mark.wide)
        for i, kind in enumerate(KINDS)
        for j, (name, shape) in enumerate(SHAPES.items())
    ],
)
def test_experts_against_float64_and_bitwise(
    ops: NativeBackend, kind: str, shape: ExpertsShape, dtype: torch.dtype
) -> None:
    """With few rows of an expert, and with more than are computed in registers."""
    experts = make(ops, kind, shape, dtype)
    x, residual = (numbers(200, shape.hidden_size, dtype=dtype, seed=seed) for seed in (900, 901))
    ids, weights = chosen(shape, 200, seed=5)
    torch.set_num_threads(1)
    y = experts(x, ids, weights, residual)
    expected = exact(shape, kind, x, ids, weights)
    assert (y.double() - expected - residual.double()).norm() < TOLERANCE[dtype] * expected.norm()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for rows in (slice(0, 1), slice(199, 200), slice(60, 73)):
            order = torch.arange(200)[rows].flip(0)
            alone = experts(x[order], ids[order], weights[order], residual[order])
            assert torch.equal(alone, y[order])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inputs_in_another_order(ops: NativeBackend, dtype: torch.dtype) -> None:
    check_input_orders(ops, dtype, TOLERANCE[dtype])


def check_input_orders(ops: NativeBackend, dtype: torch.dtype, tolerance: float) -> None:
    """Each expert's in one of their own, or as they are."""
    shape, experts = SHAPES["few"], [expert_of(SHAPES["few"], "Q4_K_M", expert)[0] for expert in range(4)]
    orders = [None if expert == 2 else (randomly(64, expert), randomly(48, expert)) for expert in range(4)]

    def weights(expert: int) -> QuantizedExpertWeights:
        parts: Iterator[list[QuantizedWeight]] = ([weight] for weight in experts[expert])
        return QuantizedExpertWeights(parts, input_orders=orders[expert])

    ordered = ops.quantized_experts(shape, Q4_K, Q6_K, dtype, map(weights, range(4)))
    x, (ids, shares) = numbers(40, 64, dtype=dtype, seed=1), chosen(shape, 40, seed=2)
    expected = torch.zeros(40, 64, dtype=torch.float64)
    for expert, tensors in enumerate(experts):
        gate, up, down = (weight.dequantized().double() for weight in tensors)
        of_inputs, of_inner = orders[expert] or (torch.arange(64), torch.arange(48))
        rows, places = torch.nonzero(ids == expert, as_tuple=True)
        given = x[rows].double()[:, of_inputs]
        inner = activated(shape, given @ gate.T, given @ up.T)[:, of_inner]
        expected.index_add_(0, rows, shares[rows, places, None].double() * (inner @ down.T))
    y = ordered(x, ids, shares, None)
    assert (y.double() - expected).norm() < tolerance * expected.norm()
    assert torch.equal(ordered(x[30:33], ids[30:33].contiguous(), shares[30:33].contiguous(), None), y[30:33])


def randomly(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@by_kind
@by_shape
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.wide)], ids=str)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.wide)])
def test_parts(ops: NativeBackend, shape: ExpertsShape, dtype: torch.dtype, ranks: int, expert_parallel: bool) -> None:
    check_experts(partial(make, ops, "Q4_K_M"), shape, dtype, ranks, expert_parallel=expert_parallel)


@by_kind
def test_captured_parts(ops: NativeBackend, expert_parallel: bool) -> None:
    shape = SHAPES["limited, with biases"]
    check_replayed_experts(partial(make, ops, "MXFP4"), shape, torch.bfloat16, expert_parallel=expert_parallel)


def test_what_would_be_padded_is_expanded(ops: NativeBackend) -> None:
    """Groups are along the inputs, and are not to be cut."""
    shape = ExpertsShape(2, 1, 40, 32, Activation.SILU)
    experts = [expert_of(shape, "MXFP4", expert)[0] for expert in range(2)]

    def weights() -> Iterator[QuantizedExpertWeights]:
        return (QuantizedExpertWeights(iter([[part] for part in parts])) for parts in experts)

    expanded, reference = (
        backend.quantized_experts(shape, MXFP4, MXFP4, torch.float32, weights()) for backend in (ops, TorchBackend())
    )
    x, ids, shares = (
        numbers(5, 40, dtype=torch.float32),
        torch.tensor([[0], [1], [1], [0], [1]]).int(),
        torch.ones(5, 1),
    )
    padded = torch.nn.functional.pad(x, (0, 8))
    torch.testing.assert_close(expanded(padded, ids, shares, None)[:, :40], reference(x, ids, shares, None))
