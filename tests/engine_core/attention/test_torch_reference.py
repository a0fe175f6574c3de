"""Attention by torch against float64: caps, sinks and rows in parts; the rest is in test_against_transformers.py."""

from __future__ import annotations

import random

import pytest
import torch

from engine_core.attention.torch_reference import TorchAttention
from tests.engine_core.attention.sequences import Geometry, Run, assert_right, make_sequences


def test_how_many_rows_are_computed_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry(4, 2, 64, 16)
    sequences = make_sequences([300, 17], geometry, torch.float32, seed=7)
    monkeypatch.setattr("engine_core.attention.torch_reference._MAX_SCORES", 4 * 300 * 7)
    assert_right(Run(TorchAttention(), geometry, sequences).at_once(), sequences, 1e-5)


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("sunk", [False, True])
def test_capped_scores_and_sinks(softcap: float | None, sunk: bool) -> None:
    geometry = Geometry(4, 2, 24, 16)
    options = {"softcap": softcap, "sinks": torch.tensor([-3.0, 0.0, 5.0, 60.0]) if sunk else None}
    sequences = make_sequences([1, 40], geometry, torch.float32, seed=3)
    run = Run(TorchAttention(), geometry, sequences, **options)
    assert_right(run.in_random_steps(random.Random(3)), sequences, 1e-5, **options)
