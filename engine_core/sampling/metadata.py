"""Sampling parameters of the batch, as vectors over slots, written once per sequence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_core.request import SamplingParams
from engine_core.sampling.grammar_mask import GrammarMask
from engine_core.sampling.logits_processors import (
    FOREVER,
    AllowedTokenIds,
    BannedTokens,
    LogitBias,
    LogitsProcessor,
    Penalties,
    ProcessorSetup,
    SamplingRows,
)
from engine_core.sampling.no_repeat_ngram import NoRepeatNgrams
from engine_core.sampling.noise import sequence_key
from engine_core.sampling.reasoning_budget import ReasoningBudgets
from engine_core.structured_output.matcher import Bits

PROCESSORS: tuple[type[LogitsProcessor[Any]], ...] = (
    GrammarMask,
    AllowedTokenIds,
    BannedTokens,
    NoRepeatNgrams,
    LogitBias,
    Penalties,
    ReasoningBudgets,
)
"""In the order in which they are applied."""

# Bits for what a row asks for beyond the argmax: one "or" over the rows of a step says what to run.
RANDOM = 1
TOP_K = 2
TOP_P = 4
MIN_P = 8
LOGPROBS = 16
PROMPT_LOGPROBS = 32
READS_TOKENS = 64
"""A logits processor depends on which tokens came before."""
EXPIRES = 128
"""A logits processor applies only to the first tokens of the output."""
BEAMS = 256
"""The likeliest tokens after all logits processors, which change log probabilities instead of logits."""
_FIRST_PROCESSOR = 512
"""The bit of ``PROCESSORS[0]``; the others have the next bits."""
PROCESSED = -_FIRST_PROCESSOR
"""All bits of logits processors."""

METHOD = RANDOM | TOP_K | TOP_P
"""Rows with the same of these bits are sampled together."""
TEMPORARY = EXPIRES | PROMPT_LOGPROBS
"""What a sequence asks for only at its beginning."""

Index = npt.NDArray[np.intp]

_SMALLEST = float(np.finfo(np.float32).tiny)


def processor_bit(kind: type[LogitsProcessor[Any]]) -> int:
    """The bit of rows to which processors of ``kind`` apply."""
    return _FIRST_PROCESSOR << PROCESSORS.index(kind)


_GREEDY = ~PROMPT_LOGPROBS
"""Bits that a row with the plain argmax does not have."""
_GREEDY_IN_GRAMMAR = ~(PROMPT_LOGPROBS | READS_TOKENS | processor_bit(GrammarMask))
"""Bits that a row with the argmax of its grammar's tokens does not have."""


class SamplingMetadata:
    """One entry per slot of the batch; for empty slots only ``asked_of`` is defined."""

    def __init__(self, setup: ProcessorSetup) -> None:
        num_slots = setup.num_slots
        self._eos_token_ids = setup.eos_token_ids
        self._vocab_size = setup.vocab_size
        self.asked_of = np.zeros(num_slots, np.int32)
        """The bits of each slot; 0 if it is empty."""
        self.asked = 0
        """The bits of all slots."""
        self.temperature = np.zeros(num_slots, np.float32)
        self.top_k = np.zeros(num_slots, np.int64)
        """``vocab_size``: all are kept."""
        self.top_p = np.zeros(num_slots, np.float64)
        self.log_min_p = np.zeros(num_slots, np.float32)
        """−inf without a min-p."""
        self.noise_key = np.zeros(num_slots, np.uint64)
        self.num_logprobs = np.zeros(num_slots, np.int32)
        """Of a beam: enough for the search, whatever tokens end it."""
        self.num_prompt_logprobs = np.zeros(num_slots, np.int32)
        self.processors: list[tuple[int, LogitsProcessor[Any]]] = [
            (processor_bit(kind), kind(setup)) for kind in PROCESSORS
        ]
        """With the bits of the rows to which they apply, in the order in which they are applied."""
        [self.grammar_mask] = [each for _, each in self.processors if isinstance(each, GrammarMask)]
        self._until = np.zeros((len(PROCESSORS), num_slots), np.int64)
        """Number of output tokens at which each processor ceases to apply."""

    def add(self, slot: int, params: SamplingParams, choice: int, num_output_tokens: int) -> None:
        """Put a sequence with ``num_output_tokens`` tokens of output into ``slot``."""
        random = not params.greedy
        asks = {
            RANDOM: random,
            TOP_K: random and params.top_k is not None and params.top_k < self._vocab_size,
            TOP_P: random and params.top_p < 1.0,
            MIN_P: random and params.min_p > 0.0,
            LOGPROBS: params.logprobs is not None,
            PROMPT_LOGPROBS: params.prompt_logprobs is not None,
            BEAMS: params.beam_search is not None,
        }
        asked = sum(bit for bit, wanted in asks.items() if wanted)
        for place, (bit, processor) in enumerate(self.processors):
            applies = processor.add(slot, params)
            self._until[place, slot] = 0 if applies is None else min(applies.until, FOREVER)
            if applies is not None:
                asked |= bit | (READS_TOKENS if applies.reads_tokens else 0)
        self.asked_of[slot] = asked
        # A smaller temperature would be zero in float32, and zero divided by zero is not a number.
        self.temperature[slot] = max(params.temperature, _SMALLEST)
        self.top_k[slot] = self._vocab_size if params.top_k is None else min(params.top_k, self._vocab_size)
        self.top_p[slot] = params.top_p
        self.log_min_p[slot] = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        self.noise_key[slot] = sequence_key(params.seed, choice)
        self.num_logprobs[slot] = params.logprobs or 0
        if params.beam_search is not None:
            self.num_logprobs[slot] = params.beam_search.width + len({*params.stop_token_ids, *self._eos_token_ids})
        self.num_prompt_logprobs[slot] = params.prompt_logprobs or 0
        self._expire_slot(slot, num_output_tokens)
        self.asked |= int(self.asked_of[slot])

    def most_bytes(self, max_model_len: int) -> int:
        """Bytes that processors may keep of all slots' tokens."""
        return sum(processor.most_bytes(max_model_len) for _, processor in self.processors)

    def greedy(self, slots: Index, *, reports: bool = True) -> bool:
        """Whether all ``slots`` take the argmax, and ask for nothing else that needs logits, ``reports`` or not."""
        # If no slot of the batch asks for anything, these need no look.
        return not self.asked or not self._asked_by(slots, reports) & _GREEDY

    def greedy_in_grammar(self, slots: Index, *, reports: bool = True) -> bool:
        """Whether some slot has a grammar, and all ``slots`` take the argmax (of their grammar's tokens, if any)."""
        return self.any_grammar and not self._asked_by(slots, reports) & _GREEDY_IN_GRAMMAR

    def _asked_by(self, slots: Index, reports: bool) -> int:
        asked = int(np.bitwise_or.reduce(self.asked_of[slots]))
        return asked if reports else asked & ~LOGPROBS

    @property
    def any_grammar(self) -> bool:
        """Whether any slot has a grammar."""
        return bool(self.asked & processor_bit(GrammarMask))

    def allowed(self, rows: SamplingRows) -> Bits:
        """[R, ⌈V / 32⌉]: the tokens that grammars allow for ``rows``; all if a row has none."""
        return self.grammar_mask.allowed(rows, np.flatnonzero(self.asked_of[rows.slots] & processor_bit(GrammarMask)))

    def reads_tokens(self, slots: Index) -> bool:
        """Whether logits processors of any of ``slots`` depend on the tokens before."""
        return bool(self.asked & READS_TOKENS and int(np.bitwise_or.reduce(self.asked_of[slots])) & READS_TOKENS)

    def expire(self, slots: Index, num_output_tokens: npt.NDArray[np.int64]) -> None:
        """Drop logits processors that no longer apply to ``slots``, which have ``num_output_tokens``."""
        if not self.asked & EXPIRES:
            return
        expiring = np.flatnonzero(self.asked_of[slots] & EXPIRES)
        for slot, count in zip(slots[expiring].tolist(), num_output_tokens[expiring].tolist(), strict=True):
            self._expire_slot(slot, count)
        self.asked = int(np.bitwise_or.reduce(self.asked_of))

    def _expire_slot(self, slot: int, num_output_tokens: int) -> None:
        asked = int(self.asked_of[slot]) & ~EXPIRES
        for (bit, _), until in zip(self.processors, self._until[:, slot].tolist(), strict=True):
            if not asked & bit or until == FOREVER:
                continue
            if num_output_tokens < until:
                asked |= EXPIRES
            else:
                asked &= ~bit
        self.asked_of[slot] = asked

    def prompts_computed(self, slots: Index) -> None:
        """Record that ``slots`` need no more log probabilities of their prompts."""
        if self.asked & PROMPT_LOGPROBS:
            self.asked_of[slots] &= ~PROMPT_LOGPROBS
            self.asked = int(np.bitwise_or.reduce(self.asked_of))

    def remove(self, slot: int) -> None:
        for _, processor in self.processors:
            processor.remove(slot)
        if self.asked_of[slot]:
            self.asked_of[slot] = 0
            self.asked = int(np.bitwise_or.reduce(self.asked_of))
