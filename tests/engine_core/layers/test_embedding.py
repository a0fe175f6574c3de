"""Lookups give the table's rows, and tied ones read them out of the packed output projection."""

from __future__ import annotations

import pytest
import torch

from engine_core.layers import linear
from engine_core.layers.embedding import Embedding, TiedEmbedding
from engine_core.layers.linear import Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocab", "hidden"), [(1000, 64), (257, 72), (130, 1), (64, 128), (7, 24), (5000, 288)])
def test_tied_rows_come_from_the_projection(vocab: int, hidden: int, dtype: torch.dtype) -> None:
    table = torch.randn(vocab, hidden, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    head = Linear(table)
    embedding = TiedEmbedding(head, table)
    assert embedding.shares_storage
    assert embedding.nbytes == 0
    ids = torch.arange(vocab).flip(0)
    assert torch.equal(embedding(ids), table[ids])
    assert torch.equal(Embedding(table)(ids), table[ids])


def test_sharing_means_the_same_memory() -> None:
    table = torch.randn(200, 64)
    embedding = TiedEmbedding(Linear(table), table)
    assert embedding._blocks is not None
    embedding._blocks.zero_()
    assert not embedding(torch.tensor([3, 199])).any()
    assert not embedding._head(torch.randn(2, 64)).any()


@pytest.mark.parametrize("table", [torch.zeros(300, 64), torch.full((320, 64), 0.5)])
def test_a_copy_is_kept_where_the_layout_cannot_be_told(table: torch.Tensor) -> None:
    embedding = TiedEmbedding(Linear(table), table)
    assert not embedding.shares_storage
    assert embedding.nbytes == table.nbytes
    assert torch.equal(embedding(torch.arange(len(table))), table)


def test_unpacked_projections_are_read_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_onednn_multiplies", lambda dtype: False)
    table = torch.randn(300, 64)
    head = Linear(table)
    embedding = TiedEmbedding(head, table)
    assert embedding.shares_storage
    head.weight[5] = 7.0
    assert torch.equal(embedding(torch.tensor([5])), torch.full((1, 64), 7.0))
