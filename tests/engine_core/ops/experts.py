"""Experts of several shapes with random weights, and rows that go through them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from engine_core.activation import Activation
from engine_core.kernels.capture import BufferPool, Captured, capturing
from engine_core.kernels.library import load_kernels
from engine_core.ops.base import ExpertsOp, UnloadedExperts
from engine_core.weights.experts import ExpertsShape, ExpertWeights

Biases = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
SHAPES = {
    "few": ExpertsShape(4, 2, 64, 48, Activation.SILU),
    "one of one": ExpertsShape(1, 1, 16, 16, Activation.SILU),
    "many": ExpertsShape(37, 5, 80, 96, Activation.GELU_TANH),
    "padded, with biases": ExpertsShape(5, 3, 70, 37, Activation.SILU, bias=True),
    "limited": ExpertsShape(6, 2, 48, 33, Activation.CLAMPED_SWIGLU, bias=True, swiglu_limit=1.5, swiglu_alpha=1.7),
    "several parts": ExpertsShape(2, 2, 2064, 208, Activation.SILU),
    "weighed inputs": ExpertsShape(4, 2, 48, 40, Activation.SILU, bias=True, weighs_inputs=True),
    "ungated": ExpertsShape(5, 2, 80, 101, Activation.RELU2, gated=False),
}


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return (size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


@cache
def weights_of(shape: ExpertsShape, expert: int, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, ...], Biases | None]:
    """Gate, if any, up and down of an expert, and their biases."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    expanding = [
        numbers(inner, hidden, dtype=dtype, seed=3 * expert + i, size=hidden**-0.5) for i in range(shape.num_expanding)
    ]
    down = numbers(hidden, inner, dtype=dtype, seed=3 * expert + 2, size=inner**-0.5)
    biases = None
    if shape.bias:
        of_gate, of_up = (numbers(inner, dtype=torch.float32, seed=90 + expert + i) for i in (0, 1))
        biases = of_gate, of_up, numbers(hidden, dtype=torch.float32, seed=190 + expert)
    return (*expanding, down), biases


def load(experts: UnloadedExperts, shape: ExpertsShape, dtype: torch.dtype) -> ExpertsOp:
    weights = (weights_of(shape, expert, dtype) for expert in range(shape.num_experts))
    experts.load(ExpertWeights(iter(tensors), biases) for tensors, biases in weights)
    return experts


def chosen(shape: ExpertsShape, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights of ``rows`` rows; the first rows all choose the same."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(shape.num_experts, generator=generator)[: shape.top_k] for _ in range(rows)])
    ids[: rows // 3] = ids[0]
    return ids.int(), torch.rand(rows, shape.top_k, generator=generator)


def factors(shape: ExpertsShape, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors [n, 1] of an expert's inputs and of its outputs, for ``weights`` [n]."""
    weights, ones = weights[:, None], torch.ones_like(weights)[:, None]
    return (weights, ones) if shape.weighs_inputs else (ones, weights)


def activated(shape: ExpertsShape, *products: torch.Tensor) -> torch.Tensor:
    """What the second product takes, in the type of the first ``products``: gate, if any, and up."""
    if not shape.gated:
        return shape.activation(*products)
    gate, up = products
    if shape.activation is not Activation.CLAMPED_SWIGLU:
        return shape.activation(gate) * up
    gate, up = gate.clamp(max=shape.swiglu_limit), up.clamp(-shape.swiglu_limit, shape.swiglu_limit)
    return (up + 1) * gate * torch.sigmoid(shape.swiglu_alpha * gate)


def check_replay(
    pool: BufferPool, fill: Callable[[int], object], compute: Callable[[int], tuple[torch.Tensor, ...]]
) -> None:
    """``compute(rows)``, captured with a few rows and replayed with others after ``fill(rows)``, has the same bits."""
    captured = Captured(pool, load_kernels().replay)
    with capturing(captured):
        few = compute(5)
    outputs = [each.as_strided((pool.max_rows, *each.shape[1:]), each.stride()) for each in few]
    for rows, threads in ((1, 2), (pool.max_rows, 1), (33, 3), (0, 1)):
        fill(rows)
        captured.replay(rows=rows, num_threads=threads)
        torch.set_num_threads(threads)
        for output, expected in zip(outputs, compute(rows), strict=True):
            assert torch.equal(output[:rows], expected)
