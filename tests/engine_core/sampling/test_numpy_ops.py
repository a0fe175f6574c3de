"""Selection and truncation without sorts, against plain sorted references."""

import numpy as np
import pytest
import torch

from engine_core.sampling.base import RandomRows
from engine_core.sampling.numpy_ops import (
    NUCLEUS_CANDIDATES,
    NumpyOps,
    argmax_in_nucleus,
    masses_of,
    reach_of,
    scale,
    top_k_prefix,
    top_p_prefix,
    top_tokens,
)


def rows_with_ties(rows: int, vocab: int, seed: int) -> np.ndarray:
    """Logits rounded to bfloat16, as models make them: many are equal, some are −0."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator).bfloat16().float()
    logits[:, ::97] = 0.0
    logits[:, 5::97] = -0.0
    return logits.numpy()


def sorted_ids(row: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(len(row)), -row))


@pytest.mark.parametrize("vocab", [3, 64, 1000, 4097, 20011])
@pytest.mark.parametrize("k", [1, 2, 50, 700])
def test_top_tokens_are_the_head_of_a_stable_sort(vocab: int, k: int) -> None:
    k = min(k, vocab)
    logits = rows_with_ties(4, vocab, seed=k)
    logits[0, -2:] = 9.0  # in the block that does not fill up
    logits[1] = 1.0
    logits[2, : vocab // 2] = -np.inf
    logits[3, :] = -np.inf
    ids = top_tokens(logits, k)
    for row in range(4):
        np.testing.assert_array_equal(ids[row], sorted_ids(logits[row])[:k])
        np.testing.assert_array_equal(top_tokens(logits[row : row + 1], k)[0], ids[row])


def test_argmax_takes_the_lowest_of_equals() -> None:
    logits = np.array([[0.0, 2.0, 2.0], [3.0, 1.0, 3.0], [-0.0, 0.0, -1.0]], np.float32)
    assert NumpyOps(3).argmax(logits).tolist() == [1, 0, 0]


def column(*values: float, dtype: type = np.float32) -> np.ndarray:
    return np.array(values, dtype)[:, np.newaxis]


def rows_of(count: int, top_p: np.ndarray | None = None, min_p: float = 0.0) -> RandomRows:
    log_min_p = column(*[np.log(min_p)] * count) if min_p else None
    return RandomRows(np.zeros((count, 1), np.uint64), column(*[1.0] * count), log_min_p, None, top_p)


def reference_prefix(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> list[int]:
    """Ids kept, in order: min-p, then top-k, then top-p over what is left, in float64."""
    order = sorted_ids(logits)
    weights = np.exp(logits[order].astype(np.float64) - logits.max())
    weights = np.where(weights >= min_p, weights, 0.0)
    weights[top_k:] = 0.0
    if top_p < 1.0:
        cumulated = np.cumsum(weights)
        length = int((cumulated < top_p * cumulated[-1]).sum()) + 1
        weights[length:] = 0.0
    return order[weights > 0].tolist()


def kept(ids: np.ndarray, scaled: np.ndarray) -> list[list[int]]:
    return [i[np.isfinite(s)].tolist() for i, s in zip(ids, scaled, strict=True)]


@pytest.mark.parametrize("min_p", [0.0, 0.03])
def test_top_k_then_top_p(min_p: float) -> None:
    logits = rows_with_ties(6, 9000, seed=1) * 3
    top_k = column(1, 3, 20, 20, 100, 60, dtype=np.int64)
    top_p = column(0.5, 0.9, 1.0, 0.3, 0.95, 1e-9, dtype=np.float64)
    ids, scaled = top_k_prefix(logits, rows_of(6, top_p, min_p), top_k)
    for row, got in enumerate(kept(ids, scaled)):
        assert got == reference_prefix(logits[row], int(top_k[row, 0]), float(top_p[row, 0]), min_p)


def members(logits: np.ndarray, masses: np.ndarray, reach: int) -> list[int]:
    """The nucleus, found out by preferring each token in turn: it wins if and only if it is inside."""
    inside = []
    for token in range(len(logits)):
        scores = np.zeros(len(logits), np.float32)
        scores[token] = 1.0
        if argmax_in_nucleus(scores, logits, masses, reach) == token:
            inside.append(token)
    return inside


@pytest.mark.parametrize("min_p", [0.0, 0.03])
@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
def test_nucleus_of_whole_rows(spread: float, min_p: float) -> None:
    """Peaked rows are settled among the candidates, flat ones by looking at winners; both equal the sorted answer."""
    vocab = 1500
    logits = rows_with_ties(5, vocab, seed=2) * spread
    top_p = column(0.1, 0.5, 0.9, 0.99, 1e-9, dtype=np.float64)
    scaled = scale(logits, logits.max(axis=1, keepdims=True), rows_of(5, min_p=min_p))
    masses = masses_of(scaled)
    reach = reach_of(masses, top_p)
    ids, candidates, complete = top_p_prefix(logits, scaled, masses, reach)
    for row, got in enumerate(kept(ids, candidates)):
        expected = reference_prefix(scaled[row], vocab, float(top_p[row, 0]), min_p)
        assert bool(complete[row]) == (len(expected) <= NUCLEUS_CANDIDATES)
        if complete[row]:
            assert got == expected
        assert members(logits[row], masses[row], int(reach[row, 0])) == sorted(expected)


def test_equal_logits_at_the_border_keep_the_lowest_ids() -> None:
    logits = np.zeros(10, np.float32)
    masses = masses_of(logits)
    assert members(logits, masses, int(np.ceil(masses.sum(dtype=np.int64) * 0.35))) == [0, 1, 2, 3]


def test_a_nucleus_that_is_reached_exactly_ends_there() -> None:
    """Two of four equal tokens are half of the mass, and the smallest set that reaches it."""
    logits = np.zeros((1, 9), np.float32)
    ids, scaled = top_k_prefix(logits, rows_of(1, column(0.5, dtype=np.float64)), column(4, dtype=np.int64))
    assert kept(ids, scaled) == [[0, 1]]
