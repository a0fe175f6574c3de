"""Dummy weights: as random as measuring needs, and the same for the same seed."""

from __future__ import annotations

import torch

from engine_core.model_loader.dummy import DummyWeights

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
