"""The order of a row's tokens, likeliest first and ties by lower id, without sorting the vocabulary.

A logit and its token id are packed into one int64 that compares as (logit, −id). No two tokens of a row are equal
then, so every selection below has one answer, whatever algorithm finds it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_ID_MASK = np.int64(0xFFFF_FFFF)
_CLASSES_PER_TOKEN = 4
_FEWEST_CLASSES = 512
"""Classes of tokens, for each token wanted and at all: more make fewer candidates, and a longer search for the
threshold; few make short inner loops."""


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
