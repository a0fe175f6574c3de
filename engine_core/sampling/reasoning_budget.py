"""Ends a model's reasoning after a number of tokens: forces the marker that closes it, then leaves the model alone."""

from __future__ import annotations

import numpy as np

from engine_core.request import ReasoningBudget, SamplingParams
from engine_core.sampling.base import Array, Index, SamplingOps, pairs_of
from engine_core.sampling.logits_processors import Applies, LogitsProcessor, SamplingRows

_MOST_BEFORE = 4
"""Tokens, such as white space, that may precede the marker that opens the reasoning."""


def forced_token(budget: ReasoningBudget, output: list[int]) -> int | None:
    """The token that must follow ``output``; None if any may."""
    start = _start(budget, output)
    if start is None:
        return None
    first, end = budget.closing[0], start + budget.max_tokens
    if first not in output[start:end]:
        if len(output) < end:
            return None
        written = len(output) - end  # of the closing marker, which is forced from ``end`` on
        return budget.closing[written] if written < len(budget.closing) else None
    return None


def _start(budget: ReasoningBudget, output: list[int]) -> int | None:
    """Where the reasoning begins in ``output``; None if it has none yet, or none at all."""
    opening = list(budget.opening)
    if not opening:
        return 0
    places = range(min(_MOST_BEFORE, len(output) - len(opening)) + 1)
    return next((at + len(opening) for at in places if output[at : at + len(opening)] == opening), None)


class ReasoningBudgets(LogitsProcessor[ReasoningBudget]):
    """``reasoning_budget``. The last processor: a forced token is drawn whatever others say of it."""

    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        budget = params.reasoning_budget
        if budget is None:
            return None
        self._of_slot[slot] = budget
        before = len(budget.opening) + _MOST_BEFORE if budget.opening else 0
        return Applies(before + budget.max_tokens + len(budget.closing), reads_tokens=True)

    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        forced: list[tuple[int, int]] = []
        for row in chosen.tolist():
            budget, output = self._of_slot[int(rows.slots[row])], rows.tokens_before(row)
            output = output[int(rows.num_prompt_tokens[row]) :]
            if len(output) < budget.max_tokens:  # most steps: long reasoning is not read again at each of them
                continue
            if (token := forced_token(budget, output.tolist())) is not None:
                forced.append((row, token))
        if forced:
            at = np.array([row for row, _ in forced], np.intp)
            ops.keep_only(logits, at, pairs_of(at, [np.array([token], np.int32) for _, token in forced]))
