"""Blocks of GGUF's types stand for the numbers that the ``gguf`` package makes of them, to the bit."""

from __future__ import annotations

from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.kernels.library import Kernels
from engine_core.quantization.gguf import GgufConfig, GgufMethod
from engine_core.quantization.gguf_blocks import BLOCK_TYPES
from engine_core.weights.source import TensorRows
from tests.engine_core.model_loader.gguf.written import random_blocks


@pytest.mark.parametrize("inputs", [256, 1024])
@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_numbers(kind: str, inputs: int) -> None:
    rows = random_blocks(GGMLQuantizationType[kind], (7, inputs), np.random.default_rng(0))
    weight = BLOCK_TYPES[kind].weight(torch.from_numpy(rows))
    expected = torch.from_numpy(gguf.quants.dequantize(rows, GGMLQuantizationType[kind]))
    found = weight.dequantized()
    if kind == "MXFP4":
        found, expected = found + 0.0, expected + 0.0  # −0 is 0 in ggml
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    kept = (weight.codes, weight.scales, weight.outer_scales, weight.minima, weight.outer_minima)
    assert all(each is None or each.is_contiguous() for each in kept)


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_kernels_read_the_same(kind: str, kernels: Kernels) -> None:
    rows = random_blocks(GGMLQuantizationType[kind], (7, 768), np.random.default_rng(0))
    rows[0].fill(255)
    rows[1].fill(0)
    found, expected = (BLOCK_TYPES[kind].weight(torch.from_numpy(rows), each) for each in (kernels, None))
    for name in ("codes", "scales", "outer_scales", "zeros", "minima", "outer_minima"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == other.dtype
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name


def test_sizes_are_those_of_ggml() -> None:
    for kind, block in BLOCK_TYPES.items():
        assert (block.block_size, block.block_bytes) == gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]], kind


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"^x\.weight is of type IQ2_XXS, which is not supported: choose .*Q4_K"
    ):
        GgufConfig.of({"types": {"y.weight": "Q4_0", "x.weight": "IQ2_XXS"}})


@pytest.mark.parametrize(
    ("kind", "place", "stored"),
    [("Q4_1", 0, b"\x00\x7e"), ("Q4_1", 2, b"\x00\x7c"), ("Q6_K", 208, b"\x00\xfc"), ("MXFP4", 0, b"\xff")],
)
def test_scales_that_are_not_finite_are_refused(kind: str, place: int, stored: bytes) -> None:
    block = BLOCK_TYPES[kind]
    rows = torch.zeros(3, block.block_bytes, dtype=torch.uint8)
    method = GgufMethod({"up.weight": kind}, None)
    piece, weights = TensorRows("up", 3, range(3)), Mock(take_stored=Mock(return_value=rows))
    assert len(list(method.read(piece, block.block_size, weights))) == 1
    rows[1, place : place + len(stored)] = torch.frombuffer(bytearray(stored), dtype=torch.uint8)
    with pytest.raises(CheckpointError, match=r"up\.weight has a scale or a minimum that is infinite or NaN"):
        list(method.read(piece, block.block_size, weights))
