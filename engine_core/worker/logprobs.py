"""Log probabilities of given tokens and of the likeliest ones, from raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine_core.step import TokenLogprobs
from engine_core.worker.ordering import F32, Ids, top_tokens

_ELEMENTS_AT_ONCE = 1 << 18
"""Logits worked on at a time: what fits a core's cache."""


def token_logprobs(logits: F32, token_ids: Ids, num_top: Sequence[int]) -> list[TokenLogprobs]:
    """One entry for each row of ``logits`` [R, V], about its token of ``token_ids`` [R].

    ``num_top`` [R] says how many of the likeliest tokens each entry lists. Ranks follow the same order as the lists:
    likeliest first, ties by lower id.
    """
    step = max(1, _ELEMENTS_AT_ONCE // logits.shape[1])
    entries: list[TokenLogprobs] = []
    for start in range(0, len(num_top), step):
        rows = slice(start, start + step)
        entries += _chunk_logprobs(logits[rows], token_ids[rows], num_top[rows])
    return entries


def _chunk_logprobs(logits: F32, token_ids: Ids, num_top: Sequence[int]) -> list[TokenLogprobs]:
    widest = min(max(num_top), logits.shape[1])
    asked = token_ids[:, np.newaxis]
    if widest:
        asked = np.concatenate([asked, top_tokens(logits, widest)], axis=1)
    maximum = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - maximum)
    values = np.take_along_axis(logits, asked, axis=1) - maximum - np.log(weights.sum(axis=1, keepdims=True))
    entries = []
    for row, (ids, logprobs, top) in enumerate(zip(asked.tolist(), values.tolist(), num_top, strict=True)):
        likeliest = ids[1:]
        rank = likeliest.index(ids[0]) + 1 if ids[0] in likeliest else _rank(logits[row], ids[0])
        entries.append(TokenLogprobs(logprobs[0], rank, tuple(likeliest[:top]), tuple(logprobs[1 : top + 1])))
    return entries


def _rank(row: F32, token: int) -> int:
    """1 and the number of tokens that come before ``token``."""
    value = row[token]
    return 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
