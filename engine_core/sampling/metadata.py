"""Sampling parameters of the batch as vectors over slots, written once per sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine_core.request import SamplingParams
from engine_core.sampling.logits_processors import TokenConstraints, TokenCounts
from engine_core.sampling.noise import sequence_key

# What a row asks for beyond the likeliest token, as bits: one "or" over the rows of a step tells what to run.
RANDOM = 1
TOP_K = 2
TOP_P = 4
MIN_P = 8
PENALTIES = 16
BAD_TOKENS = 32
BAD_WORDS = 64  # of several tokens
MIN_TOKENS = 128
ALLOWED = 256
BIAS = 512
LOGPROBS = 1024
PROMPT_LOGPROBS = 2048

WAY = RANDOM | TOP_K | TOP_P
BANS = BAD_TOKENS | BAD_WORDS | MIN_TOKENS
ALTERS_LOGITS = PENALTIES | BANS | ALLOWED | BIAS
READS_TOKENS = PENALTIES | BAD_WORDS
"""What depends on which tokens came before, and not only on how many."""
PASSING = MIN_TOKENS | PROMPT_LOGPROBS
"""What a sequence asks for at its beginning alone."""

_SMALLEST = float(np.finfo(np.float32).tiny)
_MOST_TOKENS = int(np.iinfo(np.int64).max)


def _features(params: SamplingParams, vocab_size: int, num_output_tokens: int) -> int:
    random = not params.greedy
    asked = {
        RANDOM: random,
        TOP_K: random and params.top_k is not None and params.top_k < vocab_size,
        TOP_P: random and params.top_p < 1.0,
        MIN_P: random and params.min_p > 0.0,
        PENALTIES: params.repetition_penalty != 1.0 or bool(params.frequency_penalty or params.presence_penalty),
        BAD_TOKENS: any(len(word) == 1 for word in params.bad_words_token_ids),
        BAD_WORDS: any(len(word) > 1 for word in params.bad_words_token_ids),
        MIN_TOKENS: num_output_tokens < params.min_tokens,
        ALLOWED: params.allowed_token_ids is not None,
        BIAS: bool(params.logit_bias),
        LOGPROBS: params.logprobs is not None,
        PROMPT_LOGPROBS: params.prompt_logprobs is not None,
    }
    return sum(bit for bit, wanted in asked.items() if wanted)


class SamplingMetadata:
    """One entry per slot of the batch; entries of empty slots are unspecified but for ``features``. N slots."""

    def __init__(self, num_slots: int, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """``eos_token_ids`` are the model's, which ``min_tokens`` keeps back."""
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self.features = np.zeros(num_slots, np.int32)
        """What each slot asks for; nothing where it is empty."""
        self.asked = 0
        """What any slot asks for."""
        self.temperature = np.zeros(num_slots, np.float32)
        self.top_k = np.zeros(num_slots, np.int64)
        """``vocab_size`` where all are kept."""
        self.top_p = np.zeros(num_slots, np.float64)
        self.log_min_p = np.zeros(num_slots, np.float32)
        """−inf without a min-p."""
        self.repetition_penalty = np.zeros(num_slots, np.float32)
        self.frequency_penalty = np.zeros(num_slots, np.float32)
        self.presence_penalty = np.zeros(num_slots, np.float32)
        self.min_tokens = np.zeros(num_slots, np.int64)
        self.noise_key = np.zeros(num_slots, np.uint64)
        self.num_logprobs = np.zeros(num_slots, np.int32)
        self.num_prompt_logprobs = np.zeros(num_slots, np.int32)
        self.constraints: list[TokenConstraints | None] = [None] * num_slots
        self.counts: list[TokenCounts | None] = [None] * num_slots

    def add(
        self, slot: int, params: SamplingParams, choice: int, token_ids: npt.NDArray[np.int32], num_prompt_tokens: int
    ) -> None:
        """Take a sequence of ``token_ids`` (prompt, then output so far) into ``slot``."""
        features = _features(params, self._vocab_size, len(token_ids) - num_prompt_tokens)
        self.features[slot] = features
        self.asked |= features
        # A smaller one would be zero in float32, and zero divided by zero is not a number.
        self.temperature[slot] = max(params.temperature, _SMALLEST)
        self.top_k[slot] = self._vocab_size if params.top_k is None else min(params.top_k, self._vocab_size)
        self.top_p[slot] = params.top_p
        self.log_min_p[slot] = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        self.repetition_penalty[slot] = params.repetition_penalty
        self.frequency_penalty[slot] = params.frequency_penalty
        self.presence_penalty[slot] = params.presence_penalty
        self.min_tokens[slot] = min(params.min_tokens, _MOST_TOKENS)
        self.noise_key[slot] = sequence_key(params.seed, choice)
        self.num_logprobs[slot] = params.logprobs or 0
        self.num_prompt_logprobs[slot] = params.prompt_logprobs or 0
        if features & (BANS | ALLOWED | BIAS):
            self.constraints[slot] = TokenConstraints(params, self._eos_token_ids, self._vocab_size)
        if features & PENALTIES:
            # Only the repetition penalty looks at the prompt.
            counted_from = 0 if params.repetition_penalty != 1.0 else num_prompt_tokens
            prompt, output = token_ids[counted_from:num_prompt_tokens], token_ids[num_prompt_tokens:]
            self.counts[slot] = TokenCounts(prompt, output)

    def greedy(self, slots: npt.NDArray[np.intp]) -> bool:
        """Whether each of ``slots`` takes its likeliest token, and asks for nothing else that logits tell."""
        # That no slot asks for anything is known without looking at them.
        return not self.asked or not int(np.bitwise_or.reduce(self.features[slots])) & ~PROMPT_LOGPROBS

    def reads_tokens(self, slots: npt.NDArray[np.intp]) -> bool:
        """Whether what may be drawn for any of ``slots`` depends on the tokens before."""
        return bool(self.asked & READS_TOKENS and int(np.bitwise_or.reduce(self.features[slots])) & READS_TOKENS)

    def drop(self, slots: npt.NDArray[np.intp], features: int) -> None:
        """``slots`` ask for ``features`` no more."""
        self.features[slots] &= ~features
        self.asked = int(np.bitwise_or.reduce(self.features))

    def remove(self, slot: int) -> None:
        """Free what ``slot`` holds."""
        self.constraints[slot] = None
        self.counts[slot] = None
        if self.features[slot]:
            self.features[slot] = 0
            self.asked = int(np.bitwise_or.reduce(self.features))

    def count(self, slots: npt.NDArray[np.intp], token_ids: npt.NDArray[np.int64]) -> None:
        """Note that ``token_ids`` were drawn for ``slots``, both [R]."""
        if not self.asked & PENALTIES:
            return
        for row in np.flatnonzero(self.features[slots] & PENALTIES):
            counts = self.counts[slots[row]]
            assert counts is not None
            counts.add(int(token_ids[row]))
