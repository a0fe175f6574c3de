"""Dummy weights: as random as measuring needs, and the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from engine_core.model_loader.dummy import DummyWeights
from engine_core.weights.quantized_weight import FP4, SIGNED6, UNSIGNED4, Offset, QuantFormat
from engine_core.weights.source import TensorRows

CPU = torch.device("cpu")
SHAPES = {"a.weight": (1500, 1000), "b.weight": (700, 1000), "b.bias": (700,), "norm.weight": (1000,)}


def test_kinds_and_spread() -> None:
    weights = DummyWeights(SHAPES, torch.float32, CPU, seed=3)
    matrix = weights.take("a.weight").clone()
    assert matrix.shape == (1500, 1000)
    assert abs(matrix.mean()) < 1e-3
    assert abs(matrix.std() - 0.02) < 1e-3
    assert len(matrix[:, 0].unique()) > 1400
    assert torch.linalg.matrix_rank(matrix) == 1000
    assert not weights.take("b.bias").any()
    assert torch.equal(weights.take("norm.weight"), torch.ones(1000))


def test_a_scalar_stays_one() -> None:
    """As of an activation function, in the modules of transformers."""
    weights = DummyWeights({"act_fn.beta": (), "w": (2,)}, torch.float32, torch.device("cpu"), 0)
    assert weights.take("act_fn.beta").shape == ()
    assert weights.take("act_fn.beta") == 1.0


def test_joined_tensors_are_those_taken_alone() -> None:
    told: list[tuple[int, int]] = []
    alone = DummyWeights(SHAPES, torch.bfloat16, CPU, seed=3)
    together = DummyWeights(SHAPES, torch.bfloat16, CPU, 3, lambda done, total: told.append((done, total)))
    expected = torch.cat([alone.take("b.weight").clone(), alone.take("a.weight").clone()])
    assert torch.equal(together.take("b.weight", "a.weight"), expected)
    together.take("b.bias")
    together.take("norm.weight")
    total = (2200 * 1000 + 1700) * 2
    assert told == [(4_400_000, total), (4_401_400, total), (total, total)]


FP8 = tuple(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist())


@pytest.mark.parametrize(
    "kept",
    [
        QuantFormat(FP4, 32, torch.bfloat16),
        QuantFormat(FP8, 128, torch.float32),
        QuantFormat(UNSIGNED4, 32, torch.float16, offset=Offset.ZERO),
        QuantFormat(UNSIGNED4, 32, torch.float16, offset=Offset.MINIMUM),
        QuantFormat(UNSIGNED4, 32, torch.float16, outer_size=256, offset=Offset.MINIMUM),
        QuantFormat(SIGNED6, 16, torch.float16, outer_size=256),
    ],
    ids=["FP4", "FP8", "zeros", "minima", "minima of two levels", "two levels"],
)
def test_quantized_weights(kept: QuantFormat) -> None:
    """As large as the others, not whole groups away from zero, and the same for ranks that have some rows."""
    weights = DummyWeights(SHAPES, torch.float32, CPU, seed=3)
    parts = list(weights.make_quantized(kept, TensorRows("a", 1500, range(1500)), 1000))
    assert len(parts) > 1
    whole = torch.cat([part.dequantized() for part in parts])
    assert whole.shape == (1500, 1000)
    assert abs(whole.std() - 0.02) < 1e-3
    assert abs(whole.mean()) < 3e-3
    (some,) = weights.make_quantized(kept, TensorRows("a", 1500, range(1100, 1140)), 1000)
    assert torch.equal(some.dequantized(), whole[1100:1140])
    assert not torch.equal(some.dequantized(), whole[1060:1100])
    (other,) = weights.make_quantized(kept, TensorRows("b", 1500, range(1100, 1140)), 1000)
    assert not torch.equal(some.codes, other.codes)
