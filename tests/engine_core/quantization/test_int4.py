"""Weights rounded to 4 bits, for every instruction set of this machine: alike, row by row, and well."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from engine_core.kernels.build import SOURCES
from engine_core.kernels.library import INSTRUCTION_SETS, Kernels, KernelsUnavailableError, load_kernels
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.int4 import CODEBOOK, OUTER_SIZE, Int4
from engine_core.weights.expert_tensors import StackedExperts
from engine_core.weights.features import Features, LinearShape

from ..ops.experts import SHAPES


@cache
def available() -> list[Kernels]:
    found = []
    for name in INSTRUCTION_SETS:
        try:
            found.append(load_kernels(name))
        except KernelsUnavailableError:
            continue
    return found


def normal(rows: int, inputs: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)) * 0.02).to(dtype)


def rounded(weight: torch.Tensor, group_size: int = 32, kernels: Kernels | None = None) -> torch.Tensor:
    method = Int4(group_size, kernels or available()[0])
    return torch.cat([part.dequantized() for part in method.rounded(weight)])


def evenly(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Rounded to 16 levels of equal distance from the least to the greatest number of each group."""
    groups = weight.unflatten(1, (-1, group_size))
    least, most = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    step = (most - least) / 15
    return ((groups - least) / step).round().mul(step).add(least).flatten(1)


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_the_error_is_well_below_that_of_even_levels(group_size: int) -> None:
    weight = normal(64, 512)
    error, even = (
        (found - weight).square().mean() for found in (rounded(weight, group_size), evenly(weight, group_size))
    )
    assert error < 0.8 * even


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_instruction_sets_round_alike(dtype: torch.dtype) -> None:
    weight = normal(37, 1000, dtype)
    expected = rounded(weight, 64, available()[0])
    assert all(torch.equal(rounded(weight, 64, kernels), expected) for kernels in available()[1:])


def test_a_row_does_not_depend_on_the_others() -> None:
    weight = normal(37, 300)
    whole = rounded(weight)
    for first, last in ((0, 1), (5, 21), (36, 37)):
        assert torch.equal(rounded(weight[first:last]), whole[first:last])


@pytest.mark.parametrize("inputs", [1, 31, 33, 300])
def test_groups_that_are_not_full(inputs: int) -> None:
    weight = normal(20, inputs)
    assert (rounded(weight) - weight).square().mean() < 0.01 * weight.square().mean()


def test_what_has_16_levels_and_equal_numbers_stay() -> None:
    levels = torch.tensor(CODEBOOK) * 2.0**-10
    weight = torch.cat([levels, levels.flip(0)])[None].repeat(3, 1)
    weight[1], weight[2] = 0.0, 0.5
    assert torch.allclose(rounded(weight), weight, rtol=0.01, atol=1e-4)
    assert not rounded(weight)[1].any()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_makes_its_neighbours_nan(number: float) -> None:
    """And no others: those with which it shares an outer scale."""
    weight = normal(18, 2 * OUTER_SIZE + 10)
    weight[3, OUTER_SIZE + 5] = number
    found = rounded(weight)
    assert found[3, OUTER_SIZE : 2 * OUTER_SIZE].isnan().all()
    assert found.isnan().sum() == OUTER_SIZE


def test_levels_are_those_of_the_kernel() -> None:
    [line] = [
        line for line in (SOURCES / "quantized" / "int4_round.h").read_text().splitlines() if "kInt4Levels[8] =" in line
    ]
    assert tuple(map(float, line.partition("{")[2].partition("}")[0].split(","))) == CODEBOOK[8:]


@pytest.mark.parametrize(("group_size", "bits"), [(32, 4.625), (64, 4.375), (128, 4.25)])
def test_bytes_of_a_layer(group_size: int, bits: float) -> None:
    shape = LinearShape.of("x", Features(1, 512), Features(1, 256), bias=True)
    assert Int4(group_size, None).weight_bytes(shape, 2) == 512 * 256 * bits / 8 + 2 * 256


def test_experts_are_rounded_like_linear_layers() -> None:
    sizes = SHAPES[next(iter(SHAPES))]
    method, tensors = Int4(32, available()[0]), StackedExperts("x.experts")
    shapes = tensors.shapes(sizes)
    stored = {name: torch.randn(*shape, generator=torch.Generator().manual_seed(7)) for name, shape in shapes.items()}

    class Weights:
        dtype = torch.float32

        def take_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
            row = stored[name][index]
            return row if rows is None else row[rows.start : rows.stop]

    class Expanded(Weights):
        def take_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
            return rounded(super().take_row(name, index, rows).contiguous())

    ops = TorchBackend()
    found = method.load_experts(sizes, tensors, Weights(), ops)  # type: ignore[arg-type]
    expected = ops.experts(sizes, torch.float32)
    expected.load(tensors.read(Expanded(), sizes, sizes.whole))  # type: ignore[arg-type]
    x = torch.randn(5, sizes.hidden_size)
    ids = torch.arange(sizes.top_k, dtype=torch.int32).repeat(5, 1)
    factors = torch.full((5, sizes.top_k), 0.5)
    assert torch.equal(found(x, ids, factors, None), expected(x, ids, factors, None))
