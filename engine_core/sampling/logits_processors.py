"""Logits processors: allowed ids, bad words, minimum length, logit bias, and penalties over token counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_core.request import SamplingParams

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class TokenConstraints:
    """What one sequence's parameters say about single tokens, in the form that a step needs."""

    def __init__(self, params: SamplingParams, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        """``eos_token_ids`` count as stop tokens unless the parameters ignore them."""
        allowed = params.allowed_token_ids
        self.allowed: Ids | None = None if allowed is None else np.unique(np.asarray(allowed, np.int64))
        self._num_allowed = vocab_size if self.allowed is None else len(self.allowed)
        self.bias_ids: Ids = np.asarray(list(params.logit_bias), np.int64)
        self.bias = np.asarray(list(params.logit_bias.values()), np.float32)
        self._min_tokens = params.min_tokens
        stop_ids = set(params.stop_token_ids) if params.ignore_eos else {*params.stop_token_ids, *eos_token_ids}
        self._stop_ids = sorted(token for token in stop_ids if token < vocab_size)
        self._always_bad = sorted({word[-1] for word in params.bad_words_token_ids if len(word) == 1})
        # Words by the token before their last one: a step compares only words that could end in it.
        self._words: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for word in params.bad_words_token_ids:
            if len(word) > 1:
                self._words.setdefault(word[-2], []).append((word[:-1], word[-1]))

    def banned(self, token_ids: npt.NDArray[np.int32], num_prompt_tokens: int) -> Ids:
        """Ids that must not follow ``token_ids`` (prompt and output).

        A bad word may begin in the prompt, but it is never completed in the output. Where nothing could be drawn
        any more, allowed ids win over the ban.
        """
        banned = set(self._always_bad)
        for prefix, last in self._words.get(int(token_ids[-1]), ()):
            if tuple(token_ids[-len(prefix) :].tolist()) == prefix:
                banned.add(last)
        if len(token_ids) - num_prompt_tokens < self._min_tokens:
            banned.update(self._stop_ids)
        ids = np.fromiter(banned, np.int64, len(banned))
        if len(ids) < self._num_allowed:
            return ids
        drawable = self._num_allowed - (len(ids) if self.allowed is None else int(np.isin(ids, self.allowed).sum()))
        return ids if drawable > 0 else ids[:0]


def keep_allowed(logits: F32, row: int, allowed: Ids) -> None:
    """Set every logit of ``row`` but the ``allowed`` ones to −inf, in place; ``logits`` [R, V]."""
    values = logits[row, allowed]
    logits[row] = -np.inf
    logits[row, allowed] = values


def _places(rows: Sequence[int], ids: Sequence[Ids]) -> tuple[Ids, Ids]:
    return np.repeat(np.asarray(rows, np.int64), [len(i) for i in ids]), np.concatenate(ids)


def ban(logits: F32, rows: Sequence[int], ids: Sequence[Ids]) -> None:
    """Set the logits of ``ids``, one array for each of ``rows``, to −inf, in place; ``logits`` [R, V]."""
    logits[_places(rows, ids)] = -np.inf


def add_bias(logits: F32, rows: Sequence[int], ids: Sequence[Ids], bias: Sequence[F32]) -> None:
    """Add ``bias`` to the logits of ``ids``, one array of each for each of ``rows``, in place; ``logits`` [R, V]."""
    logits[_places(rows, ids)] += np.concatenate(bias)


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
