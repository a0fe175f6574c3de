"""Attention within a picture, over queries a few at a time, so that no matrix of all scores exists.

A query's bits depend neither on its neighbours in a tile nor on the number of threads: on a CPU, torch computes a
head's queries each by one thread, and adds over keys in blocks of a fixed size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_core.vision.transformers_tower import attention

TILE = 256
"""Queries at once. A bias for 4,096 keys and 12 heads then takes 50 MB in float32."""

BiasOf = Callable[[int, int], torch.Tensor]
"""Called with the first query and the one behind the last; returns what is added to their scores [B, heads, n, K], or
which keys each sees [n, K]."""


def widened(heads: torch.Tensor) -> torch.Tensor:
    """``heads`` in the type that attention computes in: on a CPU float32, for ``attention``'s reason."""
    return heads.float() if heads.is_cpu else heads


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, bias_of: BiasOf | None = None
) -> torch.Tensor:
    """[B, Q, heads · D] for ``queries`` [B, heads, Q, D], ``keys`` and ``values`` [B, heads, K, D], which are
    ``widened``.
    """
    count, num_heads, rows, size = queries.shape
    attended = queries.new_empty(count, rows, num_heads, size)
    for first in range(0, rows, TILE):
        last = min(first + TILE, rows)
        bias = None if bias_of is None else bias_of(first, last)
        tile = attention(queries[:, :, first:last], keys, values, bias, scale)
        attended[:, first:last] = tile.transpose(1, 2)
    return attended.flatten(2)
