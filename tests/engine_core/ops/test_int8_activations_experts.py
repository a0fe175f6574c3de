"""Experts of integer codes that round their inputs, for every instruction set of this machine: near float64, and for
each row the same bits whatever the other rows, the threads, the ranks and the instruction set.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from engine_core.kernels.library import Kernels, load_int8_kernels, load_kernels
from engine_core.ops.int8_activations import Int8Activations, Int8ActivationsExperts
from engine_core.ops.native import NativeBackend
from engine_core.weights.experts import ExpertsShape

from .experts import chosen, numbers
from .parts import by_kind, check_experts, check_replayed_experts
from .test_native_quantized_experts import SHAPES, check_input_orders, exact, make

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.fixture
def ops(int8_kernels: Kernels) -> NativeBackend:
    return NativeBackend(load_kernels(), Int8Activations(int8_kernels))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        pytest.param(kind, shape, id=f"{kind}-{name}", marks=() if i == j < 2 else pytest.mark.wide)
        for i, kind in enumerate(("Q4_K_M", "MXFP4", "AWQ"))
        for j, (name, shape) in enumerate(SHAPES.items())
    ],
)
def test_rows_have_the_same_bits_in_every_batch(ops: NativeBackend, kind: str, shape: ExpertsShape) -> None:
    experts = make(ops, kind, shape, torch.bfloat16)
    assert isinstance(experts, Int8ActivationsExperts)
    x, residual = (numbers(120, shape.hidden_size, dtype=torch.bfloat16, seed=seed) for seed in (900, 901))
    ids, weights = chosen(shape, 120, seed=5)
    torch.set_num_threads(1)
    y = experts(x, ids, weights, residual)
    expected = exact(shape, kind, x, ids, weights)
    assert (y.double() - expected - residual.double()).norm() < 0.04 * expected.norm()
    best = NativeBackend(load_kernels(), Int8Activations(load_int8_kernels()))
    assert torch.equal(make(best, kind, shape, torch.bfloat16)(x, ids, weights, residual), y)
    torch.set_num_threads(3)
    for rows in (slice(0, 1), slice(119, 120), slice(60, 73)):
        order = torch.arange(120)[rows].flip(0)
        assert torch.equal(experts(x[order], ids[order], weights[order], residual[order]), y[order])


def test_inputs_in_another_order(ops: NativeBackend) -> None:
    check_input_orders(ops, torch.bfloat16, 0.04)


@by_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.wide)], ids=str)
def test_parts(ops: NativeBackend, dtype: torch.dtype, expert_parallel: bool) -> None:
    check_experts(partial(make, ops, "Q4_K_M"), SHAPES["few"], dtype, 2, expert_parallel=expert_parallel)


@by_kind
def test_captured_parts(ops: NativeBackend, expert_parallel: bool) -> None:
    shape = SHAPES["limited, with biases"]
    check_replayed_experts(partial(make, ops, "MXFP4"), shape, torch.bfloat16, expert_parallel=expert_parallel)
