"""Sequences whose grammars take long take turns with all others: it decides when they go on, never what they answer.

A step is as slow as the grammars in it together, and an ambiguous one takes longer with every token. So a step has few
slow grammars, one after the other; and after it none is planned until the others have had three times as long. While
there are no others, they go on at once. A grammar that has to take in an output again, after a resume or a preemption,
counts as slow until it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine_core.sequence import Sequence
from engine_core.step import StepResult
from text_core.grammar.limits import WRITTEN_GRAMMAR

OTHERS_SHARE = 3
"""Time for others, in that which slow grammars took."""
STEP_SECONDS = 0.05
"""What slow grammars may take of one step together. One of them goes on whatever it takes."""
REPLAYED_SECONDS = 5e-5
"""Of a token that is taken in again, about. Forms that people write take 0.01 to 0.05 ms."""
SLOW_REPLAY = 5e-3
"""The same in a grammar whose rules a client wrote, at worst: they may be ambiguous."""


class Pacing:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._until = -math.inf
        """The time from which sequences with slow grammars go on."""
        self._room = STEP_SECONDS
        """Of the step that is being planned."""

    def take_in(self, sequences: Iterable[Sequence], result: StepResult, now: float) -> None:
        """A step with ``sequences`` is over."""
        for seq, token_ids in zip(sequences, result.token_ids, strict=True):
            if token_ids:
                seq.grammar_seconds = result.grammar_seconds.get(seq.seq_id, 0.0)
        if result.grammar_seconds:
            self._until = max(self._until, now + OTHERS_SHARE * sum(result.grammar_seconds.values()))

    def is_turn_of_others(self, now: float) -> bool:
        """Whether sequences with slow grammars wait, if there are others."""
        return now < self._until

    def in_turn(self, running: list[Sequence], *, others_only: bool) -> list[Sequence]:
        """Those of the ``running`` sequences that go on: of slow grammars those that waited longest, or none."""
        self._room = STEP_SECONDS
        slow = [seq for seq in running if seq.grammar_seconds]
        if not slow:
            return running
        waiting: set[int] = set()
        for seq in sorted(slow, key=lambda seq: -1 if seq.last_step is None else seq.last_step):
            if others_only or not self._has_room(seq.grammar_seconds):
                waiting.add(seq.seq_id)
        return [seq for seq in running if seq.seq_id not in waiting]

    def holds_back(self, seq: Sequence, *, others_only: bool) -> bool:
        """Whether a sequence that starts is not sampled in the step, because its grammar takes in its output first."""
        grammar = seq.group.request.params.grammar
        if grammar is None or not seq.output:
            return False
        may_be_slow = WRITTEN_GRAMMAR in grammar
        taken = (SLOW_REPLAY if may_be_slow else REPLAYED_SECONDS) * len(seq.output)
        seq.grammar_seconds = max(seq.grammar_seconds, taken)
        return (others_only and may_be_slow) or not self._has_room(seq.grammar_seconds)

    def _has_room(self, seconds: float) -> bool:
        """Take ``seconds`` of the step, if there is room; the last may take more than there is."""
        if self._room <= 0:
            return False
        self._room -= seconds
        return True
