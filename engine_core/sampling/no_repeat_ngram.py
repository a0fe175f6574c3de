"""``no_repeat_ngram``: no token completes a run of tokens that the last tokens of the output hold already.

Models that read pages fall into loops. The rule is that of vLLM's processor for DeepSeek-OCR: a run counts if all of it
is in the window, and tokens of the prompt do not count. (There a run of one token is never banned, here it is.)

For each distance d the longest common end of the output and of the output without its last d tokens is kept, up to the
length that matters. One more token changes all of them in a few operations on arrays: where it equals the token d
before it, the common end grows by one, elsewhere it becomes empty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine_core.request import NoRepeatNgram, SamplingParams
from engine_core.sampling.base import Array, Ids, Index, SamplingOps, pairs_of
from engine_core.sampling.logits_processors import Applies, LogitsProcessor, ProcessorSetup, SamplingRows, Tokens
from engine_core.validation import MAX_NGRAM_WINDOW


class Repeats:
    """The runs of one output that its last tokens repeat."""

    def __init__(self, rule: NoRepeatNgram) -> None:
        self._rule = rule
        self._enough = rule.ngram_size - 1
        """A common end so long makes the token behind it one that is banned."""
        distances = max(0, rule.window_size - rule.ngram_size + 1)  # beyond, a run begins before the window
        self._ends = np.zeros(distances, np.int16)
        """[distance − 1]: the length of the common end, at most ``_enough``."""
        self._allowed = np.fromiter(rule.allowed_token_ids, np.int32, len(rule.allowed_token_ids))
        self._num_tokens = 0
        """Of the output, so far."""

    def copy(self) -> Repeats:
        """One that goes on by itself."""
        other = Repeats(self._rule)
        other._ends[:] = self._ends
        other._num_tokens = self._num_tokens
        return other

    def advance(self, output: Tokens) -> None:
        """Take in what ``output`` has behind the tokens so far."""
        # What is longer ago is no part of a run that the next token could complete.
        for at in range(max(self._num_tokens, len(output) - self._enough), len(output)):
            ends = self._ends[:at]
            ends += 1
            ends *= output[at - len(ends) : at][::-1] == output[at]
            np.minimum(ends, self._enough, out=ends)
        self._num_tokens = len(output)

    def banned(self, output: Tokens) -> Ids:
        """The tokens that must not follow ``output``, which is taken in."""
        distances = np.flatnonzero(self._ends[: len(output)] >= self._enough) + 1
        ids = np.unique(output[len(output) - distances])
        if len(self._allowed) and len(ids):
            ids = ids[~np.isin(ids, self._allowed)]
        return ids.astype(np.int64)


class NoRepeatNgrams(LogitsProcessor[tuple[NoRepeatNgram, Repeats | None]]):
    """After the processors that allow and ban tokens: where it leaves none, it is passed over."""

    def __init__(self, setup: ProcessorSetup) -> None:
        super().__init__(setup)
        self._num_slots = setup.num_slots

    def most_bytes(self, max_model_len: int) -> int:
        return np.dtype(np.int16).itemsize * self._num_slots * min(max_model_len, MAX_NGRAM_WINDOW)

    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        rule = params.no_repeat_ngram
        if rule is None or rule.ngram_size > rule.window_size:
            return None
        self._of_slot[slot] = rule, None
        return Applies(reads_tokens=True)

    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        ids: list[npt.NDArray[np.integer]] = []
        slot, repeats = -1, None
        for row in chosen.tolist():
            output = rows.tokens_before(row)[int(rows.num_prompt_tokens[row]) :]
            num_drafts = int(rows.num_drafts[row])
            if repeats is None or rows.slots[row] != slot or not num_drafts:
                slot = int(rows.slots[row])
                repeats = self._certain(slot, output[: len(output) - num_drafts])
                repeats = repeats.copy() if num_drafts else repeats
            elif num_drafts == 1:
                repeats = repeats.copy()
            repeats.advance(output)
            ids.append(repeats.banned(output))
        ops.ban(logits, pairs_of(chosen, ids))

    def _certain(self, slot: int, output: Tokens) -> Repeats:
        """With ``output``, which has no drafts."""
        rule, repeats = self._of_slot[slot]
        if repeats is None:
            repeats = Repeats(rule)
            self._of_slot[slot] = rule, repeats
        repeats.advance(output)
        return repeats
