"""Temperature, min-p, top-k and top-p: which tokens of a row may be sampled, and with what weight; the order of a row's
tokens without sorting the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_ID_MASK = np.int64(0xFFFF_FFFF)
_CLASSES_PER_TOKEN = 4
_FEWEST_CLASSES = 512
"""Classes of tokens, for each token wanted and at all: more make fewer candidates, and a longer search for the
threshold; few make short inner loops."""
NUCLEUS_CANDIDATES = 128
"""Tokens in which a nucleus is looked for before the whole row is."""
_UNITS = np.float32(1 << 30)
Masses = npt.NDArray[np.int32]
Sums = npt.NDArray[np.int64]


def _pack(values: F32, ids: Ids) -> Ids:
    """One number for each of ``values`` and its id: greater value first, then lower id. −0 equals +0."""
    bits = (values + np.float32(0.0)).view(np.int32)
    bits ^= (bits >> np.int32(31)) & np.int32(0x7FFF_FFFF)
    return (bits.astype(np.int64) << np.int64(32)) + (_ID_MASK - ids)


def top_tokens(logits: F32, k: int) -> Ids:
    """Ids [R, k] of the ``k`` ≤ V likeliest tokens of ``logits`` [R, V], in order.

    Tokens are divided into classes. The k-th greatest of the classes' maxima is a threshold that k tokens reach at
    least, and in most rows not many more: only those are sorted.
    """
    if k == 1:
        return argmax(logits)[:, np.newaxis]
    num_rows, vocab = logits.shape
    places = np.flatnonzero(
        ~(logits < _threshold(logits, k))
    )  # written so that NaN comes through, as it does in argmax
    rows = places // vocab
    counts = np.bincount(rows, minlength=num_rows)
    first = np.cumsum(counts) - counts
    packed = np.full((num_rows, int(counts.max())), np.iinfo(np.int64).min)
    packed[rows, np.arange(len(places)) - first[rows]] = _pack(logits.ravel()[places], places - rows * vocab)
    packed.sort(axis=1)
    return _ID_MASK - (packed[:, : -k - 1 : -1] & _ID_MASK)


def _threshold(logits: F32, k: int) -> F32:
    """[R, 1]: a logit that at least ``k`` of each row are not below."""
    num_rows, vocab = logits.shape
    size = max(1, vocab // max(_CLASSES_PER_TOKEN * k, _FEWEST_CLASSES))
    classes = vocab // size
    if classes < k:
        return np.full((num_rows, 1), -np.inf, np.float32)
    # A class is every so many-th token, so that maxima are taken of whole rows of memory. What the classes do not hold
    # can only add to those that reach the threshold.
    maxima = logits[:, : size * classes].reshape(num_rows, size, classes).max(axis=1)
    return np.partition(maxima, classes - k, axis=1)[:, classes - k, np.newaxis]


def argmax(logits: F32) -> Ids:
    """The likeliest token of each row [R] of ``logits`` [R, V]; the lowest id of equals."""
    tokens: Ids = logits.argmax(axis=1)
    return tokens


@dataclass(frozen=True, slots=True)
class Warp:
    """How the logits of R rows are changed before a draw."""

    temperature: F32
    """[R, 1], > 0"""
    log_min_p: F32 | None
    """[R, 1], −inf where a row has no min-p; None where no row has one."""

    def scale(self, logits: F32, maximum: F32) -> F32:
        """(logits − maximum) ÷ temperature, −inf where the probability is under min-p of the likeliest token's.

        ``logits`` [R, K], ``maximum`` [R, 1] of the whole row; a new array [R, K], at most 0. Min-p is of Nguyen et
        al., "Turning up the heat: min-p sampling for creative and coherent LLM outputs", 2024.
        """
        scaled = logits - maximum
        scaled /= self.temperature
        if self.log_min_p is not None:
            scaled[scaled < self.log_min_p] = -np.inf
        return scaled


def masses_of(scaled: F32) -> Masses:
    """Exponentials of ``scaled`` (≤ 0) in units of 2⁻³⁰; sum them as int64."""
    weights = np.exp(scaled)
    weights *= _UNITS
    weights += np.float32(0.5)
    return weights.astype(np.int32)


def reach_of(total: Sums, top_p: npt.NDArray[np.float64]) -> Sums:
    """The mass that a nucleus must reach, of ``total`` by ``top_p``."""
    return np.ceil(total * top_p).astype(np.int64)


def _drop_beyond(scaled: F32, masses: Masses, reach: Sums) -> npt.NDArray[np.bool_]:
    """Set all past the shortest prefix that reaches ``reach`` [R, 1] to −inf, in place; true [R] where one does."""
    cumulated = np.cumsum(masses, axis=1, dtype=np.int64)
    scaled[:, 1:][cumulated[:, :-1] >= reach] = -np.inf
    reached: npt.NDArray[np.bool_] = cumulated[:, -1] >= reach[:, 0]
    return reached


def top_k_prefix(
    logits: F32, warp: Warp, top_k: npt.NDArray[np.int64], top_p: npt.NDArray[np.float64] | None
) -> tuple[Ids, F32]:
    """Ids and scaled logits [R, max(top_k)] of what the truncations leave of ``logits`` [R, V]; −inf beyond.

    ``top_k`` [R, 1] in 1 … V, ``top_p`` [R, 1] or None where no row has one. Top-p (Holtzman et al., "The curious case
    of neural text degeneration", 2019) counts the mass that min-p and top-k have left.
    """
    width = int(top_k.max())
    ids = top_tokens(logits, width)
    kept = np.take_along_axis(logits, ids, axis=1)
    scaled = warp.scale(kept, kept[:, :1])
    scaled[np.arange(width) >= top_k] = -np.inf
    if top_p is not None:
        masses = masses_of(scaled)
        total = masses.sum(axis=1, keepdims=True, dtype=np.int64)
        # The mass of a row without top-p is never reached: it is not to lose a tail because another row has top-p.
        _drop_beyond(scaled, masses, np.where(top_p < 1.0, reach_of(total, top_p), total + 1))
    return ids, scaled


def top_p_prefix(logits: F32, scaled: F32, masses: Masses, reach: Sums) -> tuple[Ids, F32, npt.NDArray[np.bool_]]:
    """Ids and scaled logits [R, K] of the nucleus of each row of ``logits`` [R, V], and whether K holds it [R].

    ``scaled`` and ``masses`` [R, V] are those of all tokens, ``reach`` [R, 1]. Rows for which the third result is false
    need ``likeliest_in_nucleus``.
    """
    ids = top_tokens(logits, min(NUCLEUS_CANDIDATES, logits.shape[1]))
    candidates = np.take_along_axis(scaled, ids, axis=1)
    complete = _drop_beyond(candidates, np.take_along_axis(masses, ids, axis=1), reach)
    return ids, candidates, complete


def likeliest_in_nucleus(scores: F32, logits: F32, masses: Masses, reach: int) -> int:
    """The token of one row with the greatest of ``scores`` [V] among the nucleus; changes ``scores``.

    Instead of finding the nucleus, the winner among all tokens is looked at: it is inside if those that precede it by
    ``logits`` [V] have less mass than ``reach``. If it is not, neither is any token after it, and the next best wins;
    on average that happens less than once, because winners are drawn in proportion to their mass.
    """
    while True:
        token = int(scores.argmax())
        precedes = logits > logits[token]
        precedes[:token] |= logits[:token] == logits[token]
        # Nothing is left only where logits are not numbers.
        if int((masses * precedes).sum(dtype=np.int64)) < reach or scores[token] == -np.inf:
            return token
        scores[~precedes] = -np.inf
