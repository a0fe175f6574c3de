from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from engine_core.pooling.config import PoolingType
from engine_core.pooling.rows import pooled_rows


def in_order(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Added one after the other, without numpy's help."""
    total = rows[0].astype(np.float64) * weights[0]
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        total = total + row.astype(np.float64) * weight
    return total


@pytest.mark.parametrize("kind", [PoolingType.MEAN, PoolingType.MEAN_SQRT_LEN, PoolingType.WEIGHTED_MEAN])
@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_sums_are_made_in_one_order_however_the_rows_come(kind: PoolingType, width: int) -> None:
    draw = np.random.default_rng(width)
    for length in (1, 2, 9, 300):
        rows = (draw.standard_normal((length, width)) * 10.0 ** draw.integers(-6, 6, (length, 1))).astype(np.float32)
        weights = np.arange(1.0, length + 1) if kind is PoolingType.WEIGHTED_MEAN else np.ones(length)
        divisor = length**0.5 if kind is PoolingType.MEAN_SQRT_LEN else weights.sum()
        expected = (in_order(rows, weights) / divisor).astype(np.float32)
        for _ in range(4):
            cuts = [0, *sorted({*draw.integers(0, length + 1, 3).tolist(), length} - {0})]
            taken = pooled_rows(kind, length, per_token=False)
            for first, end in pairwise(cuts):
                assert taken.wanted(first, end) == range(first, end)
                taken.add(rows[first:end], first)
            assert taken.pooled().tobytes() == expected.tobytes(), (length, cuts)


def test_one_row_is_taken_from_the_step_that_computes_it() -> None:
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    for kind, place in ((PoolingType.LAST, 9), (PoolingType.CLS, 0)):
        taken = pooled_rows(kind, 10, per_token=False)
        for first, end in ((0, 4), (4, 9), (9, 10)):
            wanted = taken.wanted(first, end)
            assert len(wanted) == (first <= place < end)
            taken.add(rows[wanted.start : wanted.stop], wanted.start)
        assert taken.pooled().tolist() == rows[place : place + 1].tolist()


def test_a_nan_is_the_greatest() -> None:
    taken = pooled_rows(PoolingType.MAX, 2, per_token=False)
    taken.add(np.array([[1, np.nan]], np.float32), 0)
    taken.add(np.array([[2, 5]], np.float32), 1)
    np.testing.assert_equal(taken.pooled(), [[2, np.nan]])
