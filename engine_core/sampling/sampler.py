"""Draws the next token of each sequence from its logits.

In this order, and each only where some row asks for it: log probabilities of the raw logits; allowed ids, bad words
and minimum length, logit bias; penalties; then the likeliest token for greedy rows, and for the others temperature,
min-p, top-k, top-p and noise. Nothing is remembered from draw to draw but the tokens themselves, and no row's result
depends on another row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_core.logprobs import Logprobs
from engine_core.sampling import metadata as asks
from engine_core.sampling.logits_processors import Penalties, add_bias, apply_penalties, ban, keep_allowed
from engine_core.sampling.logprobs import token_logprobs
from engine_core.sampling.metadata import SamplingMetadata
from engine_core.sampling.noise import U64, VocabularyNoise, gumbel, position_keys
from engine_core.sampling.top_k_top_p import (
    F32,
    Ids,
    Warp,
    argmax,
    likeliest_in_nucleus,
    masses_of,
    reach_of,
    top_k_prefix,
    top_p_prefix,
)

Index = npt.NDArray[np.intp]

_ELEMENTS_AT_ONCE = 1 << 19
"""Logits worked on at a time: about what a core's cache holds, and a bound on what the sampler takes beside them."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The rows to draw for; all are aligned with the rows of the logits. R rows."""

    slots: Index
    """[R]"""
    token_ids: npt.NDArray[np.int32]
    """[slots, longest]: the tokens of every slot of the batch."""
    num_tokens: npt.NDArray[np.int64]
    """[R]: tokens known of each row, which is the absolute position of the one to draw."""
    num_prompt_tokens: npt.NDArray[np.int64]
    """[R]"""

    def part(self, chosen: slice) -> SamplingRows:
        """Some adjacent rows."""
        return SamplingRows(self.slots[chosen], self.token_ids, self.num_tokens[chosen], self.num_prompt_tokens[chosen])


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """What was drawn."""

    token_ids: npt.NDArray[np.int64]
    """[R]"""
    logprobs: dict[int, Logprobs]
    """One entry by row, where asked for."""


class Sampler:
    """Reads ``state`` and draws; R rows, V vocabulary size. For logits in the processor's own memory."""

    def __init__(self, state: SamplingMetadata, vocab_size: int) -> None:
        """``state`` is kept and read at each draw."""
        self._state = state
        self._noise = VocabularyNoise(vocab_size)

    @staticmethod
    def rows_at_once(vocab_size: int) -> int:
        """Rows that are worked on at a time: what they take at most is what the sampler does."""
        return max(1, _ELEMENTS_AT_ONCE // vocab_size)

    def sample(self, logits: F32, rows: SamplingRows) -> SamplerOutput:
        """Draw one token for each row of ``logits`` [R, V], which may be changed."""
        token_ids = np.empty(len(rows.slots), np.int64)
        logprobs: dict[int, Logprobs] = {}
        step = self.rows_at_once(logits.shape[1])
        with np.errstate(all="ignore"):  # logits are −inf where tokens are banned, and temperatures may be tiny
            for start in range(0, len(token_ids), step):
                chunk = slice(start, start + step)
                drawn = self._sample_chunk(logits[chunk], rows.part(chunk))
                token_ids[chunk] = drawn.token_ids
                logprobs |= {start + row: entry for row, entry in drawn.logprobs.items()}
        return SamplerOutput(token_ids, logprobs)

    def _sample_chunk(self, logits: F32, rows: SamplingRows) -> SamplerOutput:
        features = self._state.features[rows.slots]
        asked = int(np.bitwise_or.reduce(features))
        reported, raw = None, None
        if asked & asks.LOGPROBS:
            # They are of what the model said; a copy is due only where that is about to change.
            reported = np.flatnonzero(features & asks.LOGPROBS)
            raw = _select(logits, reported)
            raw = raw.copy() if asked & asks.ALTERS_LOGITS else raw
        if asked & asks.ALTERS_LOGITS:
            self._constrain(logits, rows, features)
        tokens = self._draw(logits, rows, features) if asked & asks.RANDOM else argmax(logits)
        logprobs: dict[int, Logprobs] = {}
        if reported is not None and raw is not None:
            num_top = self._state.num_logprobs[rows.slots[reported]].tolist()
            entries = token_logprobs(raw, tokens[reported], num_top)
            logprobs = dict(zip(reported.tolist(), entries, strict=True))
        return SamplerOutput(tokens, logprobs)

    def _constrain(self, logits: F32, rows: SamplingRows, features: npt.NDArray[np.int32]) -> None:
        """Apply allowed ids, bans, bias and penalties, in place."""
        state = self._state
        limited = [
            (int(row), constraints)
            for row in np.flatnonzero(features & (asks.ALLOWED | asks.BANS | asks.BIAS))
            if (constraints := state.constraints[rows.slots[row]]) is not None
        ]
        for row, constraints in limited:
            if constraints.allowed is not None:
                keep_allowed(logits, row, constraints.allowed)
        banned = [
            (row, ids)
            for row, constraints in limited
            if features[row] & asks.BANS
            and len(ids := constraints.banned(self._known_tokens(rows, row), int(rows.num_prompt_tokens[row])))
        ]
        if banned:
            ban(logits, *zip(*banned, strict=True))
        biased = [(row, c.bias_ids, c.bias) for row, c in limited if len(c.bias_ids)]
        if biased:
            add_bias(logits, *zip(*biased, strict=True))
        penalized = np.flatnonzero(features & asks.PENALTIES)
        if len(penalized):
            slots = rows.slots[penalized]
            penalties = Penalties(
                state.repetition_penalty[slots], state.frequency_penalty[slots], state.presence_penalty[slots]
            )
            counts = [counted for slot in slots if (counted := state.counts[slot]) is not None]
            apply_penalties(logits, penalized, counts, penalties)

    @staticmethod
    def _known_tokens(rows: SamplingRows, row: int) -> npt.NDArray[np.int32]:
        return rows.token_ids[rows.slots[row], : rows.num_tokens[row]]

    def _draw(self, logits: F32, rows: SamplingRows, features: npt.NDArray[np.int32]) -> Ids:
        """Token ids [R] of greedy and random rows alike."""
        ways = features & asks.WAY
        keys = position_keys(self._state.noise_key[rows.slots], rows.num_tokens)[:, np.newaxis]
        if (ways == ways[0]).all():
            return self._draw_alike(int(ways[0]), logits, keys, rows.slots)
        tokens = np.empty(len(ways), np.int64)
        for way in set(ways.tolist()):
            chosen = np.flatnonzero(ways == way)
            tokens[chosen] = self._draw_alike(way, _select(logits, chosen), keys[chosen], rows.slots[chosen])
        return tokens

    def _draw_alike(self, way: int, logits: F32, keys: U64, slots: Index) -> Ids:
        """Token ids [R] of rows that all ask for the same ``way``."""
        if way & asks.TOP_K:
            return self._draw_top_k(logits, keys, slots)
        if way & asks.TOP_P:
            return self._draw_top_p(logits, keys, slots)
        return self._draw_any(logits, keys, slots) if way else argmax(logits)

    def _warp(self, slots: Index) -> Warp:
        log_min_p = _column(self._state.log_min_p[slots]) if self._state.asked & asks.MIN_P else None
        return Warp(_column(self._state.temperature[slots]), log_min_p)

    def _draw_any(self, logits: F32, keys: U64, slots: Index) -> Ids:
        scaled = self._warp(slots).scale(logits, logits.max(axis=1, keepdims=True))
        return argmax(self._noise.add_to(scaled, keys))

    def _draw_top_k(self, logits: F32, keys: U64, slots: Index) -> Ids:
        top_p = _column(self._state.top_p[slots]) if self._state.asked & asks.TOP_P else None
        ids, scaled = top_k_prefix(logits, self._warp(slots), _column(self._state.top_k[slots]), top_p)
        return self._draw_from(ids, scaled, keys)

    def _draw_top_p(self, logits: F32, keys: U64, slots: Index) -> Ids:
        scaled = self._warp(slots).scale(logits, logits.max(axis=1, keepdims=True))
        masses = masses_of(scaled)
        reach = reach_of(masses.sum(axis=1, keepdims=True, dtype=np.int64), _column(self._state.top_p[slots]))
        ids, candidates, complete = top_p_prefix(logits, scaled, masses, reach)
        tokens = self._draw_from(ids, candidates, keys)
        for row in np.flatnonzero(~complete):
            scores = self._noise.add_to(scaled[row : row + 1], keys[row : row + 1])[0]
            tokens[row] = likeliest_in_nucleus(scores, logits[row], masses[row], int(reach[row, 0]))
        return tokens

    @staticmethod
    def _draw_from(ids: Ids, scaled: F32, keys: U64) -> Ids:
        """One of ``ids`` [R, K] by its ``scaled`` logits [R, K]."""
        scaled += gumbel(keys, ids)
        return ids[np.arange(len(ids)), argmax(scaled)]


def _select(logits: F32, rows: Index) -> F32:
    """``rows`` (ascending) of ``logits``; a view where they are adjacent."""
    first, last = int(rows[0]), int(rows[-1])
    return logits[first : last + 1] if last - first + 1 == len(rows) else logits[rows]


def _column(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[R] as [R, 1]."""
    return array[:, np.newaxis]
