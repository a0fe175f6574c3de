"""Log probabilities of given tokens and of the likeliest ones, from raw logits."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_core.logprobs import Logprobs
from engine_core.sampling.top_k_top_p import F32, Ids, top_tokens

_ELEMENTS_AT_ONCE = 1 << 18
"""Logits worked on at a time: what fits a core's cache."""


def token_logprobs(logits: F32, token_ids: Ids, num_top: Sequence[int]) -> list[Logprobs]:
    """One entry for each row of ``logits`` [R, V], about its token of ``token_ids`` [R].

    ``num_top`` [R] says how many of the likeliest tokens each entry lists. Ranks follow the same order as the lists:
    likeliest first, ties by lower id.
    """
    entries: list[Logprobs] = []
    for rows in _chunks(logits):
        counts = num_top[rows]
        entries += rows_of(_chunk_logprobs(logits[rows], token_ids[rows], max(counts)), counts)
    return entries


def consecutive_logprobs(logits: F32, token_ids: Ids, num_top: int) -> Logprobs:
    """Those of all rows together, which list ``num_top`` tokens each; at least one row."""
    first, *others = (_chunk_logprobs(logits[rows], token_ids[rows], num_top) for rows in _chunks(logits))
    for chunk in others:
        first.extend(chunk)
    return first


def rows_of(packed: Logprobs, num_top: Iterable[int]) -> list[Logprobs]:
    """Each entry for itself, with as many alternatives as ``num_top`` says, and as there are."""
    return [packed.row(row, min(count, packed.top_count)) for row, count in enumerate(num_top)]


def pack(ranks: Ids, top_ids: Ids, values: F32) -> Logprobs:
    """``ranks`` [R]; ``top_ids`` [R, k]; ``values`` [R, 1 + k]: log probabilities of the token and of those."""
    return Logprobs(
        top_ids.shape[1],
        _array("f", values[:, 0], np.float32),
        _array("I", ranks, np.uint32),
        _array("I", top_ids, np.uint32),
        _array("f", values[:, 1:], np.float32),
    )


def _array(code: str, values: npt.NDArray[np.generic], dtype: type[np.generic]) -> array[Any]:
    packed: array[Any] = array(code)
    packed.frombytes(values.astype(dtype, copy=False).tobytes())
    return packed


def _chunks(logits: F32) -> Iterator[slice]:
    step = max(1, _ELEMENTS_AT_ONCE // logits.shape[1])
    for start in range(0, len(logits), step):
        yield slice(start, start + step)


def _chunk_logprobs(logits: F32, token_ids: Ids, num_top: int) -> Logprobs:
    asked = token_ids[:, np.newaxis]
    if widest := min(num_top, logits.shape[1]):
        asked = np.concatenate([asked, top_tokens(logits, widest)], axis=1)
    maximum = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - maximum)
    values = np.take_along_axis(logits, asked, axis=1) - maximum - np.log(weights.sum(axis=1, keepdims=True))
    return pack(_ranks(logits, token_ids, asked[:, 1:]), asked[:, 1:], values)


def _ranks(logits: F32, token_ids: Ids, argmax: Ids) -> Ids:
    """[R]: the place among the ``argmax`` [R, k], or behind them the number of tokens that come before."""
    places = argmax == token_ids[:, np.newaxis]
    ranks = 1 + places.argmax(axis=1) if argmax.shape[1] else np.zeros(len(token_ids), np.int64)
    for row in np.flatnonzero(~places.any(axis=1)).tolist():
        ranks[row] = _rank(logits[row], int(token_ids[row]))
    return ranks


def _rank(row: F32, token: int) -> int:
    """1 and the number of tokens that come before ``token``."""
    value = row[token]
    return 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
