"""What one rank of several computes with 8-bit weights, on every instruction set of this machine: the whole's bits.

Numbers between the two products of experts are rounded by the largest of a whole row, which no rank has alone.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsSplit
from engine_core.quantization.int8 import Int8, Int8Linear
from engine_core.quantization.int8_experts import Int8Experts
from engine_core.weights.expert_tensors import SeparateExperts

from ..ops.experts import SHAPES
from ..ops.parts import LateRank, by_kind, by_ranks, check_experts, check_linear, check_replayed_experts
from .test_int8 import DTYPES, KERNELS

pytestmark = pytest.mark.usefixtures("poisoned_memory")
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
by_shape = pytest.mark.parametrize("shape", SHAPES)


@by_ranks
@by_dtype
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(257, 48), (80, 1030), (512, 96)])
def test_linear(int8_kernels: Kernels, outputs: int, inputs: int, bias: bool, dtype: torch.dtype, ranks: int) -> None:
    """The kernel's panels have 32 outputs: ranks are cut between those, and within."""
    check_linear(partial(Int8Linear, kernels=int8_kernels), dtype, outputs, inputs, ranks, bias=bias)


@by_kind
@by_ranks
@by_dtype
@by_shape
def test_experts(int8_kernels: Kernels, shape: str, dtype: torch.dtype, ranks: int, expert_parallel: bool) -> None:
    make = partial(Int8Experts, int8_kernels)
    check_experts(make, SHAPES[shape], dtype, ranks, expert_parallel=expert_parallel)


@by_kind
@by_shape
def test_captured_experts(int8_kernels: Kernels, shape: str, expert_parallel: bool) -> None:
    make = partial(Int8Experts, int8_kernels)
    check_replayed_experts(make, SHAPES[shape], torch.bfloat16, expert_parallel=expert_parallel)


@by_kind
@by_shape
def test_memory_is_what_was_told_before(shape: str, expert_parallel: bool) -> None:
    sizes, method = SHAPES[shape], Int8(KERNELS)
    for rank in range(3):
        split = ExpertsSplit.of(sizes, LateRank(rank, 3), expert_parallel=expert_parallel)
        experts = Int8Experts(KERNELS, sizes, torch.bfloat16, split)
        assert experts.nbytes == method.expert_bytes(sizes, SeparateExperts("experts"), 2, split.own)
