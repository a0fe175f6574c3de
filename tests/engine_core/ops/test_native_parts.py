"""What one rank of several computes, for every instruction set of this machine: the bits of the whole."""

from __future__ import annotations

import pytest
import torch

from engine_core.kernels.library import Kernels
from engine_core.ops.native import NativeBackend
from engine_core.ops.torch import TorchBackend

from .experts import SHAPES
from .parts import (
    Parts,
    by_kind,
    by_ranks,
    check_experts,
    check_linear,
    check_replayed_experts,
    rows_of,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYERS = [(257, 48), (96, 2064), (512, 1040)]
"""Outputs and inputs: the last part has one output; fewer whole tiles than ranks; several tiles each."""
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_shape = pytest.mark.parametrize("shape", SHAPES)


@pytest.fixture
def ops(kernels: Kernels) -> NativeBackend:
    return NativeBackend(kernels)


@by_ranks
@by_dtype
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), LAYERS)
def test_linear(ops: NativeBackend, outputs: int, inputs: int, bias: bool, dtype: torch.dtype, ranks: int) -> None:
    check_linear(ops.linear, dtype, outputs, inputs, ranks, bias=bias)


@by_kind
@by_ranks
@by_dtype
@by_shape
def test_experts(ops: NativeBackend, shape: str, dtype: torch.dtype, ranks: int, expert_parallel: bool) -> None:
    """Some ranks have no outputs, or no experts: there are fewer panels, or experts, than ranks."""
    check_experts(ops.experts, SHAPES[shape], dtype, ranks, expert_parallel=expert_parallel)


@by_kind
@by_dtype
@by_shape
def test_captured_experts(ops: NativeBackend, shape: str, dtype: torch.dtype, expert_parallel: bool) -> None:
    check_replayed_experts(ops.experts, SHAPES[shape], dtype, expert_parallel=expert_parallel)


@by_kind
@by_ranks
@by_shape
def test_torch_experts(shape: str, ranks: int, expert_parallel: bool) -> None:
    """Right, not to the bit: torch chooses its kernels by size."""
    sizes, dtype = SHAPES[shape], torch.float32
    parts = Parts.make(TorchBackend().experts, sizes, dtype, ranks, expert_parallel=expert_parallel)
    x, ids, weights, residual = rows_of(sizes, 23, dtype)
    x, residual = x[:, : sizes.hidden_size], residual[:, : sizes.hidden_size]
    for added in (None, residual):
        y = parts.put_together(parts.compute(x, ids, weights, added))
        torch.testing.assert_close(y, parts.whole(x, ids, weights, added), atol=1e-5, rtol=1e-5)


@by_kind
@by_ranks
@by_shape
def test_ranks_have_every_weight_once(shape: str, ranks: int, expert_parallel: bool) -> None:
    sizes = SHAPES[shape]
    shards = sizes.shards(ranks, expert_parallel=expert_parallel)
    assert sum(map(sizes.num_weights_of, shards)) == sizes.num_weights
    for name in ("experts",) if expert_parallel else ("inner", "hidden"):
        assert [each for own in shards for each in getattr(own, name)] == list(getattr(sizes.whole, name))
