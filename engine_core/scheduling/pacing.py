"""Turns of sequences with slow grammars and of all others: decides when they go on, never what they answer.

A step waits for all of its grammars together, and an ambiguous grammar takes longer with every token. So a step has few
slow grammars, which take turns; after it none is planned until other sequences have had three times as long. Without
others, they go on at once. A grammar that must replay an output, after a resume or a preemption, counts as slow until
it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine_core.sequence import Sequence
from engine_core.step import StepResult
from text_core.grammar.limits import WRITTEN_GRAMMAR

OTHERS_SHARE = 3
"""Time for others, as a multiple of what slow grammars took."""
STEP_SECONDS = 0.05
"""Limit of all slow grammars in a step together. One may always go on, however long it takes."""
REPLAYED_SECONDS = 5e-5
"""Per replayed token, about. Typical forms take 0.01 to 0.05 ms."""
SLOW_REPLAY = 5e-3
"""Per replayed token in grammars that clients write, at worst: they may be ambiguous."""


class Pacing:
    """Decides whose turn it is."""

    def __init__(self) -> None:
        self._until = -math.inf
        """The time from which sequences with slow grammars go on."""
        self._room = STEP_SECONDS
        """Seconds left in the step that is being planned."""

    def take_in(self, sequences: Iterable[Sequence], result: StepResult, now: float) -> None:
        """Record the grammar times of a finished step with ``sequences``."""
        for seq, token_ids in zip(sequences, result.token_ids, strict=True):
            if token_ids:
                seq.grammar_seconds = result.grammar_seconds.get(seq.seq_id, 0.0)
        if result.grammar_seconds:
            self._until = max(self._until, now + OTHERS_SHARE * sum(result.grammar_seconds.values()))

    def is_turn_of_others(self, now: float) -> bool:
        """Whether sequences with slow grammars wait, if there are others."""
        return now < self._until

    def in_turn(self, running: list[Sequence], *, others_only: bool) -> list[Sequence]:
        """The ``running`` sequences that go on; of those with slow grammars the ones that waited longest, or none."""
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
        """Whether a starting sequence is not sampled in this step, because its grammar replays its output first."""
        grammar = seq.group.request.params.grammar
        if grammar is None or not seq.output:
            return False
        may_be_slow = WRITTEN_GRAMMAR in grammar
        taken = (SLOW_REPLAY if may_be_slow else REPLAYED_SECONDS) * len(seq.output)
        seq.grammar_seconds = max(seq.grammar_seconds, taken)
        return (others_only and may_be_slow) or not self._has_room(seq.grammar_seconds)

    def _has_room(self, seconds: float) -> bool:
        """Take ``seconds`` of the step, if there is room; the last to get room may exceed it."""
        if self._room <= 0:
            return False
        self._room -= seconds
        return True
