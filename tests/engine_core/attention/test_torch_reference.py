"""Paged attention against float64 softmax over each sequence's own keys, whatever the step and the cache look like."""

from __future__ import annotations

import random

import pytest
import torch

from engine_core.attention.torch_reference import TorchAttention
from tests.engine_core.attention.sequences import Geometry, Run, assert_right, make_sequences

GEOMETRIES = [
    Geometry(4, 2, 64, 16),
    Geometry(7, 1, 16, 16),
    Geometry(4, 4, 24, 8),
    Geometry(12, 1, 32, 256),
    Geometry(20, 2, 6, 1),
    Geometry(6, 2, 128, 48),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2, torch.float16: 1.5e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_random_steps(geometry: Geometry, dtype: torch.dtype) -> None:
    rng = random.Random(str(geometry))
    lengths = [1, 300, *rng.sample([2, 15, 16, 17, 100, 127, 128, 129, 255, 256], 6)]
    sequences = make_sequences(lengths, geometry, dtype, seed=1)
    outputs = Run(TorchAttention(), geometry, sequences).in_random_steps(rng)
    assert_right(outputs, sequences, TOLERANCE[dtype], torch.finfo(dtype).eps)


@pytest.mark.parametrize("window", [1, 7, 16, 100])
def test_windows(window: int) -> None:
    geometry = Geometry(4, 2, 24, 8)
    sequences = make_sequences([1, 9, window, 130], geometry, torch.float32, seed=window)
    outputs = Run(TorchAttention(), geometry, sequences, window=window).in_random_steps(random.Random(window))
    assert_right(outputs, sequences, 1e-5, window=window)


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
