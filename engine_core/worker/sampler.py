"""Draws the next token of each sequence from its logits.

In this order, and each only where some row asks for it: log probabilities of the raw logits; allowed ids, bad words
and minimum length, logit bias; penalties; then the likeliest token for greedy rows, and for the others temperature,
min-p, top-k, top-p and noise. Nothing is remembered from draw to draw but the tokens themselves, and no row's result
depends on another row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.step import TokenLogprobs
from engine_core.worker import sampling_state as asks
from engine_core.worker.constraints import add_bias, ban, keep_allowed
from engine_core.worker.logprobs import token_logprobs
from engine_core.worker.noise import gumbel, position_keys, token_counters
from engine_core.worker.ordering import argmax
from engine_core.worker.penalties import Penalties, apply_penalties
from engine_core.worker.sampling_state import SamplingState
from engine_core.worker.truncation import Warp, keep_nucleus, top_k_prefix, top_p_prefix

Index = npt.NDArray[np.intp]

_ELEMENTS_AT_ONCE = 1 << 22
"""Logits worked on at a time: bounds what the sampler takes beside them."""
_WHOLE_ROW_ELEMENTS = 1 << 18
"""The same where every token of a row needs noise or mass: what fits a core's cache."""


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
    logprobs: dict[int, TokenLogprobs]
    """By row, where asked for."""


class Sampler:
    """Reads ``state`` and draws; R rows, V vocabulary size."""

    def __init__(self, state: SamplingState, vocab_size: int, device: torch.device) -> None:
        """``state`` is kept and read at each draw."""
        self._state = state
        self._device = device
        self._counters = token_counters(torch.arange(vocab_size, device=device))

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> SamplerOutput:
        """Draw one token for each row of ``logits`` [R, V] float32, which may be changed."""
        if not int(np.bitwise_or.reduce(self._state.features[rows.slots])) & ~asks.PROMPT_LOGPROBS:
            return SamplerOutput(argmax(logits).numpy(force=True), {})
        token_ids = np.empty(len(rows.slots), np.int64)
        logprobs: dict[int, TokenLogprobs] = {}
        step = max(1, _ELEMENTS_AT_ONCE // logits.shape[1])
        for start in range(0, len(token_ids), step):
            chunk = slice(start, start + step)
            drawn = self._sample_chunk(logits[chunk], rows.part(chunk))
            token_ids[chunk] = drawn.token_ids
            logprobs |= {start + row: entry for row, entry in drawn.logprobs.items()}
        return SamplerOutput(token_ids, logprobs)

    def _sample_chunk(self, logits: torch.Tensor, rows: SamplingRows) -> SamplerOutput:
        features = self._state.features[rows.slots]
        asked = int(np.bitwise_or.reduce(features))
        # Log probabilities are of what the model said; a copy is due only where that is about to change.
        reported = np.flatnonzero(features & asks.LOGPROBS)
        raw = _select(logits, reported) if len(reported) else None
        if asked & asks.ALTERS_LOGITS:
            raw = None if raw is None else raw.clone()
            self._constrain(logits, rows, features)
        tokens = self._draw(logits, rows, features) if asked & asks.RANDOM else argmax(logits)
        logprobs: dict[int, TokenLogprobs] = {}
        if raw is not None:
            num_top = self._state.num_logprobs[rows.slots[reported]].tolist()
            entries = token_logprobs(raw, tokens[torch.from_numpy(reported)], num_top)
            logprobs = dict(zip(reported.tolist(), entries, strict=True))
        return SamplerOutput(tokens.numpy(force=True), logprobs)

    def _constrain(self, logits: torch.Tensor, rows: SamplingRows, features: npt.NDArray[np.int32]) -> None:
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

    def _draw(self, logits: torch.Tensor, rows: SamplingRows, features: npt.NDArray[np.int32]) -> torch.Tensor:
        """Token ids [R] of greedy and random rows alike."""
        tokens = torch.empty(len(features), dtype=torch.int64, device=self._device)
        is_random = (features & asks.RANDOM) != 0
        truncation = features & (asks.TOP_K | asks.TOP_P)
        greedy = np.flatnonzero(~is_random)
        if len(greedy):
            tokens[torch.from_numpy(greedy)] = argmax(_select(logits, greedy))
        few = max(1, _WHOLE_ROW_ELEMENTS // logits.shape[1])
        for part, draw, rows_at_once in (
            (is_random & (truncation & asks.TOP_K != 0), self._draw_top_k, len(features)),
            (is_random & (truncation == asks.TOP_P), self._draw_top_p, few),
            (is_random & (truncation == 0), self._draw_any, few),
        ):
            for chosen in _chunks(np.flatnonzero(part), rows_at_once):
                slots = rows.slots[chosen]
                keys = position_keys(self._state.noise_key[slots], rows.num_tokens[chosen])
                drawn = draw(_select(logits, chosen), _column(keys.view(np.int64)), slots)
                tokens[torch.from_numpy(chosen)] = drawn
        return tokens

    def _warp(self, slots: Index) -> Warp:
        min_p = self._state.min_p[slots]
        return Warp(_column(self._state.temperature[slots]), _column(min_p) if min_p.any() else None)

    def _draw_any(self, logits: torch.Tensor, keys: torch.Tensor, slots: Index) -> torch.Tensor:
        scaled = self._warp(slots).scale(logits, logits.amax(dim=1, keepdim=True))
        return argmax(scaled.add_(gumbel(keys, self._counters)))

    def _draw_top_k(self, logits: torch.Tensor, keys: torch.Tensor, slots: Index) -> torch.Tensor:
        top_p = self._state.top_p[slots]
        needed_top_p = _column(top_p) if (top_p < 1.0).any() else None
        ids, scaled = top_k_prefix(logits, self._warp(slots), _column(self._state.top_k[slots]), needed_top_p)
        return self._draw_from(ids, scaled, keys)

    def _draw_top_p(self, logits: torch.Tensor, keys: torch.Tensor, slots: Index) -> torch.Tensor:
        top_p = self._state.top_p[slots]
        scaled = self._warp(slots).scale(logits, logits.amax(dim=1, keepdim=True))
        ids, candidates, complete = top_p_prefix(logits, scaled, _column(top_p))
        tokens = self._draw_from(ids, candidates, keys)
        for row in (~complete).nonzero().squeeze(1).tolist():
            keep_nucleus(scaled[row], float(top_p[row]))
            tokens[row : row + 1] = argmax(scaled[row : row + 1] + gumbel(keys[row : row + 1], self._counters))
        return tokens

    def _draw_from(self, ids: torch.Tensor, scaled: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """One of ``ids`` [R, K] by its ``scaled`` logits [R, K]."""
        place = argmax(scaled + gumbel(keys, self._counters[ids]))
        return ids.gather(1, place.unsqueeze(1)).squeeze(1)


def _select(logits: torch.Tensor, rows: Index) -> torch.Tensor:
    """``rows`` (ascending) of ``logits``; a view where they are adjacent."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return logits[first : last + 1]
    return logits.index_select(0, torch.from_numpy(rows))


def _chunks(rows: Index, size: int) -> Iterator[Index]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _column(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """[R] as [R, 1]."""
    return torch.from_numpy(array).unsqueeze(1)
