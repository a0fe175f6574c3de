"""Experts with 8-bit weights, for every instruction set of this machine: right, to the bit where the activation rounds
nothing, and for each row the same bits whatever the other rows and the threads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from engine_core.activation import Activation
from engine_core.errors import UnsupportedModelError
from engine_core.kernels.library import Kernels
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.int8 import Int8
from engine_core.quantization.int8_experts import Int8Experts
from engine_core.weights.expert_tensors import SeparateExperts
from engine_core.weights.experts import ExpertsShape

from ..ops.experts import SHAPES, activated, chosen, factors, load, numbers, weights_of
from .test_int8 import DTYPES, KERNELS, held_bytes, rounded

pytestmark = pytest.mark.usefixtures("poisoned_memory")
by_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 4e-2, torch.float16: 8e-3}


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, factor: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """Float32, step for step what the kernel computes: integers are exact in float64. ``factor``: of the rows."""
    (integers, scales), (weights, channel_scales) = rounded(x), rounded(weight)
    y = (integers @ weights.T).float() * channel_scales.T * (scales * factor)
    return y if bias is None else y + bias


def expected(
    shape: ExpertsShape, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """Rounded where the kernel rounds."""
    outputs = x.new_zeros(*ids.shape, shape.hidden_size)
    for expert in ids.unique().tolist():
        (*expanding, down), biases = weights_of(shape, expert, x.dtype)
        *added, of_down = biases or [None] * len(shape.inputs)
        rows, places = torch.nonzero(ids == expert, as_tuple=True)
        before, after = factors(shape, weights[rows, places])
        products = [product(x[rows], each, bias, before) for each, bias in zip(expanding, added, strict=True)]
        inner = activated(shape, *products).to(x.dtype)
        outputs[rows, places] = (product(inner, down, of_down) * after).to(x.dtype)
    total = outputs[:, 0].float()
    for place in range(1, ids.shape[1]):
        total = total + outputs[:, place].float()
    return (total + residual.float()).to(x.dtype)


@by_shape
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_bits(int8_kernels: Kernels, shape: ExpertsShape, dtype: torch.dtype) -> None:
    """Where the activation rounds nothing, to the bit."""
    pad = partial(torch.nn.functional.pad, pad=(0, -shape.hidden_size % 16))
    x, residual = (numbers(40, shape.hidden_size, dtype=dtype, seed=seed) for seed in (900, 901))
    ids, weights = chosen(shape, 40, seed=5)
    for exact, sizes in ((False, shape), (True, replace(shape, activation=Activation.RELU))):
        experts = load(Int8Experts(int8_kernels, sizes, dtype), sizes, dtype)
        torch.set_num_threads(1)
        y = experts(pad(x), ids, weights, pad(residual))
        right = expected(sizes, x, ids, weights, residual)
        assert not y[:, shape.hidden_size :].any()
        if exact:
            assert torch.equal(y[:, : shape.hidden_size], right)
        torch.testing.assert_close(y[:, : shape.hidden_size], right, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        for threads in (1, 3):
            torch.set_num_threads(threads)
            order = torch.randperm(40, generator=torch.Generator().manual_seed(threads))
            assert torch.equal(experts(pad(x[order]), ids[order], weights[order], pad(residual[order])), y[order])
            for rows in (slice(0, 1), slice(39, 40), slice(3, 30)):
                part = experts(pad(x[rows]), ids[rows].contiguous(), weights[rows], pad(residual[rows]))
                assert torch.equal(part, y[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_not_numbers_stay_alone(int8_kernels: Kernels, dtype: torch.dtype) -> None:
    shape = SHAPES["few"]
    experts = load(Int8Experts(int8_kernels, shape, dtype), shape, dtype)
    x = numbers(30, 64, dtype=dtype, seed=3)
    ids, weights = chosen(shape, 30, seed=4)
    clean = experts(x, ids, weights, None)
    for value in (torch.inf, torch.nan):
        spoiled = x.clone()
        spoiled[5, 9] = value
        y = experts(spoiled, ids, weights, None)
        assert y[5].isnan().all()
        assert torch.equal(y[torch.arange(30) != 5], clean[torch.arange(30) != 5])


@by_shape
def test_memory_is_what_was_told_before(shape: ExpertsShape) -> None:
    experts = Int8Experts(KERNELS, shape, torch.bfloat16)
    held = held_bytes(experts._gate_up) + held_bytes(experts._down)
    assert experts.nbytes == Int8(None).expert_bytes(shape, SeparateExperts("experts"), 2) == held


def test_sizes_that_torch_layers_do_not_pad_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="of experts with hidden_size=70 needs native kernels"):
        Int8(KERNELS).experts(SHAPES["padded, with biases"], torch.float32, TorchBackend())
