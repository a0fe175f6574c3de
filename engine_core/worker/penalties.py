"""Repetition, frequency and presence penalties over sparse token counts.

A sequence has few distinct tokens beside the vocabulary, so counts are kept per distinct token, only for sequences
that ask for a penalty, and grow by one token a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """The distinct tokens of one sequence and how often each is in its output (0: in the prompt alone)."""

    def __init__(self, prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32]) -> None:
        """Count ``output``; ``prompt`` adds its tokens with 0 (leave it empty where only output counts)."""
        ids, places = np.unique(np.concatenate([prompt, output]), return_inverse=True)
        counts = np.bincount(places[len(prompt) :], minlength=len(ids))
        self._size = len(ids)
        self._ids = ids.astype(np.int64)
        self._counts = counts.astype(np.float32)
        self._places = {token: place for place, token in enumerate(ids.tolist())}

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[distinct tokens], in no particular order."""
        return self._ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """[distinct tokens]: occurrences in the output."""
        return self._counts[: self._size]

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = self._size
            if place == len(self._ids):
                self._ids = np.resize(self._ids, 2 * place + 16)
                self._counts = np.resize(self._counts, 2 * place + 16)
            self._ids[place] = token_id
            self._counts[place] = 0
            self._size += 1
        self._counts[place] += 1


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of some rows; all arrays [rows] float32."""

    repetition: npt.NDArray[np.float32]
    frequency: npt.NDArray[np.float32]
    presence: npt.NDArray[np.float32]


def apply_penalties(
    logits: npt.NDArray[np.float32],
    rows: npt.NDArray[np.intp],
    counts: Sequence[TokenCounts],
    penalties: Penalties,
) -> None:
    """Penalize ``rows`` of ``logits`` [R, V] in place; ``counts`` and ``penalties`` are aligned with ``rows``.

    Repetition (Keskar et al., "CTRL", 2019): a positive logit of a token in prompt or output is divided, a negative
    one multiplied. Then, per token of the output, frequency · count and presence are subtracted.
    """
    sizes = [len(c.ids) for c in counts]
    places = (np.repeat(rows, sizes), np.concatenate([c.ids for c in counts]))
    count = np.concatenate([c.counts for c in counts])
    repetition, frequency, presence = (
        np.repeat(column, sizes) for column in (penalties.repetition, penalties.frequency, penalties.presence)
    )
    values = logits[places]
    values = np.where(values > 0, values / repetition, values * repetition)
    values -= frequency * count
    values -= presence * (count > 0)
    logits[places] = values
