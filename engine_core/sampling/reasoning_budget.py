"""Ends a model's reasoning after a number of tokens: forces the marker that closes it, and bans another beginning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine_core.request import ReasoningBudget, SamplingParams
from engine_core.sampling.base import Array, Ids, Index, SamplingOps
from engine_core.sampling.logits_processors import Applies, LogitsProcessor, SamplingRows, Tokens
from engine_core.structured_output.compiler import GrammarCompiler

_MOST_SECTIONS = 64
"""Times that an answer may begin to reason: each step reads all of them."""
_MOST_BYTES = 4
"""Of a character in UTF-8, and so the most tokens that it may have."""
_MOST_BEFORE = 16
"""Tokens of white space that may precede the marker that opens the reasoning."""


def forced_and_banned(
    budget: ReasoningBudget, output: Sequence[int] | Tokens, within: Callable[[Sequence[int]], bool] | None = None
) -> tuple[int | None, int | None]:
    """The token that must follow ``output``, and one that must not: it would begin what can only be ended at once.

    ``within``: whether token ids end within a character, which is then ended first; None: that makes no difference.
    """
    tokens = np.asarray(output, np.int32)
    start, left, closing = _start(budget, tokens), budget.max_tokens, budget.closing
    spent = False
    for section in range(_MOST_SECTIONS):
        if start is None:
            break
        end, own = start + left, _find(tokens, closing[:1], start)
        while within is not None and start < end <= len(tokens) and within(tokens[start:end][-_MOST_BYTES:].tolist()):
            end += 1
        if own is not None and own < end:  # the model has ended it
            left = max(left - (own - start), 0)
            behind = own + 1
        elif (written := len(tokens) - end) < len(closing):
            return (closing[written] if written >= 0 else None), None
        else:
            left, behind = 0, end + len(closing)
        spent = left == 0 or section == _MOST_SECTIONS - 1
        start = _find_end(tokens, budget.again, behind)
    return None, _beginning(budget.again, tokens) if spent else None


def _may_be_spent(budget: ReasoningBudget, output: Tokens) -> bool:
    """Whether ``output``, of fewer tokens than the budget, may have begun to reason as often as it may."""
    if len(output) < _MOST_SECTIONS or not budget.again:
        return False
    return int(np.count_nonzero(output == budget.again[0])) >= _MOST_SECTIONS - 1


def _beginning(marker: tuple[int, ...], tokens: Tokens) -> int | None:
    """The token that would begin ``marker``: its second one, if it has more, as what begins like it may be another."""
    if len(marker) < 2:
        return marker[0] if marker else None
    return marker[1] if int(tokens[-1]) == marker[0] else None


def _start(budget: ReasoningBudget, tokens: Tokens) -> int | None:
    """Where the first reasoning begins; None if there is none yet, or none at all."""
    if not budget.opening:
        return 0
    if budget.again and not budget.begun:
        return _find_end(tokens, budget.opening, 0)
    first = tokens[: _MOST_BEFORE + len(budget.opening)].tolist()
    at = next((at for at, token in enumerate(first[:_MOST_BEFORE]) if token not in budget.blank), _MOST_BEFORE)
    end = at + len(budget.opening)
    is_opened = first[at:end] == [*budget.opening]
    return end if is_opened else 0 if budget.begun else None


def _find_end(tokens: Tokens, marker: tuple[int, ...], begin: int) -> int | None:
    found = _find(tokens, marker, begin)
    return None if found is None else found + len(marker)


def _find(tokens: Tokens, marker: tuple[int, ...], begin: int) -> int | None:
    """The first place of ``marker`` from ``begin`` on; None also if it is empty."""
    count = len(tokens) - begin - len(marker) + 1
    if not marker or count <= 0:
        return None
    is_here = np.logical_and.reduce([tokens[begin + at : begin + at + count] == id_ for at, id_ in enumerate(marker)])
    first = int(is_here.argmax())
    return begin + first if is_here[first] else None


class ReasoningBudgets(LogitsProcessor[tuple[ReasoningBudget, GrammarCompiler | None]]):
    """``reasoning_budget``. The last processor: a forced token is drawn whatever others say of it.

    A grammar's free text has whole characters: there reasoning ends behind the character that its last token begins.
    """

    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        budget = params.reasoning_budget
        if budget is None:
            return None
        self._of_slot[slot] = budget, None if params.grammar is None else self._setup.grammars
        if budget.again:
            return Applies(reads_tokens=True)
        before = len(budget.opening) + _MOST_BEFORE if budget.opening else 0
        most = before + budget.max_tokens + _MOST_BYTES + len(budget.closing)
        return Applies(most, reads_tokens=True)

    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        forced: dict[int, int] = {}
        banned: dict[int, int] = {}
        for row in chosen.tolist():
            budget, grammars = self._of_slot[int(rows.slots[row])]
            output = rows.tokens_before(row)[int(rows.num_prompt_tokens[row]) :]
            if len(output) < budget.max_tokens and not _may_be_spent(budget, output):
                continue  # most steps: long reasoning is not read again at each of them
            must, must_not = forced_and_banned(
                budget, output, None if grammars is None else grammars.ends_within_character
            )
            if must is not None:
                forced[row] = must
            elif must_not is not None:
                banned[row] = must_not
        if banned:
            ops.ban(logits, _pairs(banned))
        if forced:
            ops.keep_only(logits, np.array([*forced], np.intp), _pairs(forced))


def _pairs(token_of_row: dict[int, int]) -> tuple[Ids, Ids]:
    return np.array([*token_of_row], np.int64), np.array([*token_of_row.values()], np.int64)
