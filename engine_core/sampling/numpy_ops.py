"""Sampling from logits in host memory: numpy on one thread, in pieces that stay in a core's cache.

Numpy's exponentials and logarithms give a number the same bits wherever it is in an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.sampling.base import LEAST_LOGIT, Change, Ids, Index, RandomRows, SamplingOps
from engine_core.sampling.noise import U64, VocabularyNoise, gumbel
from engine_core.structured_output.matcher import Bits

F32 = npt.NDArray[np.float32]
Masses = npt.NDArray[np.int32]

NUCLEUS_CANDIDATES = 128
"""First tokens in which a nucleus is looked for before the whole row is searched."""
_CLASSES_PER_TOKEN = 4
_FEWEST_CLASSES = 512
"""Classes of tokens, per wanted token and at least: more classes leave fewer candidates, but lengthen the search for
the threshold; few classes make short inner loops."""
_LOGPROB_ELEMENTS = 1 << 18
"""Logits whose log probabilities are computed at a time: they fit a core's cache."""
_ID_MASK = np.int64(0xFFFF_FFFF)
_PROBED = 64
"""Logits of which one is usually not banned, so that the row need not be searched."""
_MASS_UNITS = np.float32(1 << 30)
_BITS_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little")
_LIMITS_OF_BYTE = np.where(_BITS_OF_BYTE == 1, np.float32(np.nan), np.float32(-np.inf))
"""[256, 8]: upper limits of logits for each bit of a mask's byte. NaN, for ``fmin``, is no limit."""

_quiet = np.errstate(all="ignore")
"""Logits are −inf if tokens are banned, NaN if a model overflows, and temperatures may be tiny."""


class NumpyOps(SamplingOps):
    """For logits in host memory."""

    elements_at_once = 1 << 19  # about what a core's cache holds
    xp = np

    def __init__(self, vocab_size: int) -> None:
        self._noise = VocabularyNoise(vocab_size)

    def array(self, logits: torch.Tensor) -> F32:
        array: F32 = logits.numpy()
        return array

    def join(self, parts: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts))

    def place(self, parts: Sequence[tuple[Index, Ids]]) -> Ids:
        placed = np.empty(sum(len(rows) for rows, _ in parts), np.int64)
        for rows, token_ids in parts:
            placed[rows] = token_ids
        return placed

    def select_rows(self, x: npt.NDArray[Any], rows: Index) -> npt.NDArray[Any]:
        return x[rows]

    def keep_only(self, logits: F32, rows: Index, pairs: tuple[Ids, Ids]) -> None:
        values = np.maximum(logits[pairs], LEAST_LOGIT)
        logits[rows] = -np.inf
        logits[pairs] = values

    def mask(self, logits: F32, rows: Index, allowed: Bits) -> None:
        for row, bits in zip(rows.tolist(), allowed, strict=True):
            limits = _LIMITS_OF_BYTE.take(bits.view(np.uint8), axis=0).reshape(-1)[: logits.shape[1]]
            if np.fmin.reduce(logits[row]) == -np.inf:  # rare, and six times as fast to test
                np.maximum(logits[row], LEAST_LOGIT, out=logits[row])
            np.fmin(logits[row], limits, out=logits[row])

    def ban(self, logits: F32, pairs: tuple[Ids, Ids]) -> None:
        rows, _ = pairs
        before = logits[pairs]
        logits[pairs] = -np.inf
        for row in np.unique(rows).tolist():
            if logits[row, :_PROBED].max() == -np.inf and logits[row].max() == -np.inf:
                own = rows == row
                logits[row, pairs[1][own]] = before[own]

    @_quiet
    def change(self, logits: F32, pairs: tuple[Ids, Ids], change: Change, *columns: npt.NDArray[Any]) -> None:
        logits[pairs] = change(np, logits[pairs], *columns)

    def argmax(self, logits: F32) -> Ids:
        token_ids: Ids = logits.argmax(axis=1)
        return token_ids

    @_quiet
    def greatest(self, logits: F32) -> F32:
        greatest: F32 = logits.max(axis=1)
        return greatest

    @_quiet
    def sample(self, logits: F32, rows: RandomRows) -> Ids:
        maximum = logits.max(axis=1, keepdims=True)
        token_ids = self._sample_finite(logits, maximum, rows)
        for row in np.flatnonzero(~np.isfinite(maximum)):
            token_ids[row] = logits[row].argmax()
        return token_ids

    def _sample_finite(self, logits: F32, maximum: F32, rows: RandomRows) -> Ids:
        """Like ``sample``, but rows whose ``maximum`` [R, 1] is not finite get arbitrary tokens."""
        if rows.top_k is not None:
            return _sample_from(*top_k_prefix(logits, rows, rows.top_k), rows.keys)
        scaled = scale(logits, maximum, rows)
        if rows.top_p is not None:
            return self._sample_top_p(logits, scaled, rows.top_p, rows.keys)
        return self.argmax(self._noise.add_to(scaled, rows.keys))

    def _sample_top_p(self, logits: F32, scaled: F32, top_p: npt.NDArray[np.float64], keys: U64) -> Ids:
        masses = masses_of(scaled)
        reach = reach_of(masses, top_p)
        ids, candidates, complete = top_p_prefix(logits, scaled, masses, reach)
        tokens = _sample_from(ids, candidates, keys)
        for row in np.flatnonzero(~complete):
            scores = self._noise.add_to(scaled[row : row + 1], keys[row : row + 1])[0]
            tokens[row] = argmax_in_nucleus(scores, logits[row], masses[row], int(reach[row, 0]))
        return tokens

    @_quiet
    def normalize(self, logits: F32, rows: Index) -> None:
        for row in rows.tolist():
            values, maximum = logits[row], logits[row].max()
            if np.isposinf(maximum):
                infinite = np.isposinf(values)
                values[:] = np.where(infinite, -np.log(infinite.sum()), -np.inf)
                continue
            total = np.exp(values - maximum).sum()
            values -= maximum
            values -= np.log(total)

    def likeliest(self, logprobs: F32, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ids = top_tokens(logprobs, k)
        values = np.take_along_axis(logprobs, np.concatenate([ids[:, :1], ids], axis=1), axis=1)
        return torch.ones(len(ids), dtype=torch.int64), torch.from_numpy(ids), torch.from_numpy(values)

    @_quiet
    def logprobs(self, logits: F32, token_ids: Ids, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ranks = np.empty(len(logits), np.int64)
        top_ids = np.empty((len(logits), k), np.int64)
        values = np.empty((len(logits), 1 + k), np.float32)
        step = max(1, _LOGPROB_ELEMENTS // logits.shape[1])
        for start in range(0, len(logits), step):
            part = slice(start, start + step)
            ranks[part], top_ids[part], values[part] = _logprobs(logits[part], token_ids[part], k)
        return torch.from_numpy(ranks), torch.from_numpy(top_ids), torch.from_numpy(values)


def scale(logits: F32, maximum: F32, rows: RandomRows) -> F32:
    """(logits − maximum) ÷ temperature; −inf if a token's probability is below min-p times the greatest.

    ``logits`` [R, K], ``maximum`` [R, 1] of the whole row; a new array [R, K], at most 0.
    """
    scaled: F32 = logits - maximum
    scaled /= rows.temperature
    if rows.log_min_p is not None:
        scaled[scaled < rows.log_min_p] = -np.inf
    return scaled


def masses_of(scaled: F32) -> Masses:
    """Exponentials of ``scaled`` (≤ 0) in units of 2⁻³⁰, integers: sums (as int64) do not depend on their order."""
    weights = np.exp(scaled)
    weights *= _MASS_UNITS
    weights += np.float32(0.5)
    return weights.astype(np.int32)


def reach_of(masses: Masses, top_p: npt.NDArray[np.float64]) -> Ids:
    """The mass [R, 1] that a nucleus must reach."""
    reach: Ids = np.ceil(masses.sum(axis=1, keepdims=True, dtype=np.int64) * top_p).astype(np.int64)
    return reach


def _drop_beyond(scaled: F32, masses: Masses, reach: Ids) -> npt.NDArray[np.bool_]:
    """Set all after the shortest prefix with mass ``reach`` [R, 1] to −inf, in place; true [R] if there is one."""
    cumulated = np.cumsum(masses, axis=1, dtype=np.int64)
    scaled[:, 1:][cumulated[:, :-1] >= reach] = -np.inf
    reached: npt.NDArray[np.bool_] = cumulated[:, -1] >= reach[:, 0]
    return reached


def _sample_from(ids: Ids, scaled: F32, keys: U64) -> Ids:
    """Sample from ``ids`` [R, K] by their ``scaled`` logits [R, K], which are overwritten."""
    scaled += gumbel(keys, ids)
    token_ids: Ids = ids[np.arange(len(ids)), scaled.argmax(axis=1)]
    return token_ids


def top_k_prefix(logits: F32, rows: RandomRows, top_k: Ids) -> tuple[Ids, F32]:
    """Ids and scaled logits [R, max(top_k)] that min-p, top-k and top-p leave of ``logits`` [R, V]; −inf beyond."""
    width = int(top_k.max())
    ids = top_tokens(logits, width)
    kept = np.take_along_axis(logits, ids, axis=1)
    scaled = scale(kept, kept[:, :1], rows)
    scaled[np.arange(width) >= top_k] = -np.inf
    if rows.top_p is not None:
        masses = masses_of(scaled)
        _drop_beyond(scaled, masses, reach_of(masses, rows.top_p))
    return ids, scaled


def top_tokens(logits: F32, k: int) -> Ids:
    """Ids [R, k] of the first ``k`` ≤ V tokens of ``logits`` [R, V], in order.

    Tokens are divided into classes. The k-th greatest of the classes' maxima is a threshold that at least k tokens
    reach, and in most rows few more: only those are sorted.
    """
    if k == 1:
        best: Ids = logits.argmax(axis=1)[:, np.newaxis]
        return best
    num_rows, vocab = logits.shape
    # Negated so that NaN passes, as it does in argmax.
    found = np.flatnonzero(~(logits < _threshold(logits, k)))
    rows = found // vocab
    counts = np.bincount(rows, minlength=num_rows)
    first = np.cumsum(counts) - counts
    packed = np.full((num_rows, int(counts.max())), np.iinfo(np.int64).min)
    packed[rows, np.arange(len(found)) - first[rows]] = _pack(logits.ravel()[found], found - rows * vocab)
    packed.sort(axis=1)
    return _ID_MASK - (packed[:, : -k - 1 : -1] & _ID_MASK)


def _pack(values: F32, ids: Ids) -> Ids:
    """One number per value and id, ordered by value, then by descending id. −0 equals +0."""
    bits = (values + np.float32(0.0)).view(np.int32)
    bits ^= (bits >> np.int32(31)) & np.int32(0x7FFF_FFFF)
    return (bits.astype(np.int64) << np.int64(32)) + (_ID_MASK - ids)


def _threshold(logits: F32, k: int) -> F32:
    """[R, 1]: a logit that at least ``k`` logits of each row reach."""
    num_rows, vocab = logits.shape
    size = max(1, vocab // max(_CLASSES_PER_TOKEN * k, _FEWEST_CLASSES))
    classes = vocab // size
    if classes < k:
        return np.full((num_rows, 1), -np.inf, np.float32)
    # Tokens of a class are ``classes`` ids apart, so that maxima are taken over contiguous rows of memory. Tokens
    # without a class can only add to those that reach the threshold.
    maxima = logits[:, : size * classes].reshape(num_rows, size, classes).max(axis=1)
    return np.partition(maxima, classes - k, axis=1)[:, classes - k, np.newaxis]


def top_p_prefix(logits: F32, scaled: F32, masses: Masses, reach: Ids) -> tuple[Ids, F32, npt.NDArray[np.bool_]]:
    """Ids and scaled logits [R, K] of each row's nucleus in ``logits`` [R, V], and whether it fits into K [R].

    ``scaled`` and ``masses`` [R, V] are of all tokens, ``reach`` [R, 1] the mass of the nucleus. Rows for which
    the third result is false need ``argmax_in_nucleus``.
    """
    ids = top_tokens(logits, min(NUCLEUS_CANDIDATES, logits.shape[1]))
    candidates = np.take_along_axis(scaled, ids, axis=1)
    complete = _drop_beyond(candidates, np.take_along_axis(masses, ids, axis=1), reach)
    return ids, candidates, complete


def argmax_in_nucleus(scores: F32, logits: F32, masses: Masses, reach: int) -> int:
    """The token of one row with the greatest of ``scores`` [V] in the nucleus; overwrites ``scores``.

    Instead of finding the nucleus, test the winner among all tokens: it is inside if the tokens that precede it by
    ``logits`` [V] have less mass than ``reach``. If not, no token after it is inside, and the next best is tested;
    on average that happens less than once, because winners are sampled in proportion to their mass.
    """
    while True:
        token = int(scores.argmax())
        precedes = logits > logits[token]
        precedes[:token] |= logits[:token] == logits[token]
        # Only with NaN logits is nothing left.
        if int((masses * precedes).sum(dtype=np.int64)) < reach or scores[token] == -np.inf:
            return token
        scores[~precedes] = -np.inf


def _logprobs(logits: F32, token_ids: Ids, k: int) -> tuple[Ids, Ids, F32]:
    own = token_ids[:, np.newaxis]
    top_ids = top_tokens(logits, k) if k else own[:, :0]
    maximum = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - maximum).sum(axis=1, keepdims=True)
    reported = np.take_along_axis(logits, np.concatenate([own, top_ids], axis=1), axis=1)
    values = reported - maximum - np.log(total)
    for row in np.flatnonzero(np.isposinf(maximum)):
        values[row] = np.where(np.isposinf(reported[row]), -np.log(np.isposinf(logits[row]).sum()), -np.inf)
    return _ranks(logits, token_ids, top_ids), top_ids, values


def _ranks(logits: F32, token_ids: Ids, top_ids: Ids) -> Ids:
    """[R]: 1 plus the index in ``top_ids`` [R, k], or else plus the number of tokens that come before."""
    places = top_ids == token_ids[:, np.newaxis]
    ranks = 1 + places.argmax(axis=1) if top_ids.shape[1] else np.zeros(len(token_ids), np.int64)
    for row in np.flatnonzero(~places.any(axis=1)).tolist():
        values, token = logits[row], int(token_ids[row])
        ranks[row] = 1 + np.count_nonzero(values > values[token]) + np.count_nonzero(values[:token] == values[token])
    return ranks
