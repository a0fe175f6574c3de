"""Selection and truncation without sorts, against plain sorted references."""

import numpy as np
import pytest
import torch

from engine_core.worker.ordering import argmax, top_tokens
from engine_core.worker.truncation import NUCLEUS_CANDIDATES, Warp, keep_nucleus, top_k_prefix, top_p_prefix


def rows_with_ties(rows: int, vocab: int, seed: int) -> torch.Tensor:
    """Logits rounded to bfloat16, as models make them: many are equal, some are −0."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator).bfloat16().float()
    logits[:, ::97] = 0.0
    logits[:, 5::97] = -0.0
    return logits


def sorted_ids(row: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(len(row)), -row))


@pytest.mark.parametrize("vocab", [3, 64, 1000, 4097, 20011])
@pytest.mark.parametrize("k", [1, 2, 50, 700])
def test_top_tokens_are_the_head_of_a_stable_sort(vocab: int, k: int) -> None:
    k = min(k, vocab)
    logits = rows_with_ties(4, vocab, seed=k)
    logits[0, -2:] = 9.0  # in the block that does not fill up
    logits[1] = 1.0
    logits[2, : vocab // 2] = float("-inf")
    ids = top_tokens(logits, k).numpy()
    for row in range(4):
        np.testing.assert_array_equal(ids[row], sorted_ids(logits[row].numpy())[:k])


def test_argmax_takes_the_lowest_of_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 3.0], [-0.0, 0.0, -1.0]])
    assert argmax(logits).tolist() == [1, 0, 0]


def warp(rows: int, min_p: float = 0.0) -> Warp:
    return Warp(torch.ones(rows, 1), torch.full((rows, 1), min_p) if min_p else None)


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


def kept(ids: torch.Tensor, scaled: torch.Tensor) -> list[list[int]]:
    return [i[torch.isfinite(s)].tolist() for i, s in zip(ids, scaled, strict=True)]


@pytest.mark.parametrize("min_p", [0.0, 0.03])
def test_top_k_then_top_p(min_p: float) -> None:
    logits = rows_with_ties(6, 9000, seed=1) * 3
    top_k = torch.tensor([1, 3, 20, 20, 100, 60]).unsqueeze(1)
    top_p = torch.tensor([0.5, 0.9, 1.0, 0.3, 0.95, 1e-9], dtype=torch.float64).unsqueeze(1)
    ids, scaled = top_k_prefix(logits, warp(6, min_p), top_k, top_p)
    for row, got in enumerate(kept(ids, scaled)):
        assert got == reference_prefix(logits[row].numpy(), int(top_k[row]), float(top_p[row]), min_p)


@pytest.mark.parametrize("min_p", [0.0, 0.03])
@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
def test_nucleus_of_whole_rows(spread: float, min_p: float) -> None:
    """Peaked rows are settled among the candidates, flat ones by the radix select; both equal the sorted answer."""
    vocab = 9000
    logits = rows_with_ties(5, vocab, seed=2) * spread
    top_p = torch.tensor([0.1, 0.5, 0.9, 0.99, 1e-9], dtype=torch.float64).unsqueeze(1)
    maximum = logits.amax(dim=1, keepdim=True)
    scaled = warp(5, min_p).scale(logits, maximum)
    ids, candidates, complete = top_p_prefix(logits, scaled, top_p)
    for row, got in enumerate(kept(ids, candidates)):
        expected = reference_prefix(scaled[row].numpy(), vocab, float(top_p[row]), min_p)
        assert bool(complete[row]) == (len(expected) <= NUCLEUS_CANDIDATES)
        if complete[row]:
            assert got == expected
        keep_nucleus(scaled[row], float(top_p[row]))
        assert torch.isfinite(scaled[row]).nonzero().squeeze(1).tolist() == sorted(expected)


def test_equal_logits_at_the_border_keep_the_lowest_ids() -> None:
    scaled = torch.zeros(10)
    keep_nucleus(scaled, 0.35)
    assert torch.isfinite(scaled).tolist() == [True] * 4 + [False] * 6


def test_a_nucleus_that_is_reached_exactly_ends_there() -> None:
    """Two of four equal tokens are half of the mass, and the smallest set that reaches it."""
    ids, scaled = top_k_prefix(
        torch.zeros(1, 9), warp(1), torch.tensor([[4]]), torch.tensor([[0.5]], dtype=torch.float64)
    )
    assert kept(ids, scaled) == [[0, 1]]


def test_a_row_without_top_p_keeps_its_whole_tail() -> None:
    """Tokens whose mass rounds to nothing still belong to a row that has no top-p, though another row has one."""
    logits = torch.tensor([[0.0, -1.0, -60.0], [0.0, -1.0, -60.0]])
    top_p = torch.tensor([[1.0], [0.999]], dtype=torch.float64)
    ids, scaled = top_k_prefix(logits, warp(2), torch.tensor([[3], [3]]), top_p)
    assert kept(ids, scaled) == [[0, 1, 2], [0, 1]]
