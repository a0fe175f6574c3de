"""Log probabilities of given tokens and of the likeliest ones, from raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine_core.step import TokenLogprobs
from engine_core.worker.ordering import top_tokens

_CHUNK_ELEMENTS = 1 << 20


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    """One entry for each row of ``logits`` [R, V] float32, about its token of ``token_ids`` [R] int64.

    ``num_top`` [R] says how many of the likeliest tokens each entry lists. Ranks follow the same order as the lists:
    likeliest first, ties by lower id.
    """
    step = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    entries: list[TokenLogprobs] = []
    for start in range(0, len(num_top), step):
        rows = slice(start, start + step)
        entries += _chunk_logprobs(logits[rows], token_ids[rows], num_top[rows])
    return entries


def _chunk_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: Sequence[int]) -> list[TokenLogprobs]:
    tokens = token_ids.unsqueeze(1)
    widest = min(max(num_top), logits.shape[1])
    asked = torch.cat([tokens, top_tokens(logits, widest)], dim=1) if widest else tokens
    values = logits.log_softmax(dim=1).gather(1, asked)
    ranks = map(_rank, logits.numpy(force=True), token_ids.tolist())
    return [
        TokenLogprobs(row_values[0], rank, tuple(row_ids[1 : top + 1]), tuple(row_values[1 : top + 1]))
        for row_ids, row_values, rank, top in zip(asked.tolist(), values.tolist(), ranks, num_top, strict=True)
    ]


def _rank(row: npt.NDArray[np.float32], token: int) -> int:
    """1 and the number of tokens that come before ``token``; numpy counts truths ten times faster than torch."""
    value = row[token]
    return 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
