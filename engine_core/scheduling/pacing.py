"""Sequences whose grammars take long take turns with all others: it decides when they go on, never what they answer.

A step is as slow as the slowest grammar in it, such as an ambiguous one, which takes longer with every token. So after
a step with slow grammars, none of them is planned until the others have had three times as long. While there are no
others, they go on at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine_core.sequence import Sequence
from engine_core.step import StepResult

OTHERS_SHARE = 3
"""Time for others, in that which slow grammars took."""


class Pacing:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._until = -math.inf
        """The time from which sequences with slow grammars go on."""

    def take_in(self, sequences: Iterable[Sequence], result: StepResult, now: float) -> None:
        """A step with ``sequences`` is over."""
        for seq in sequences:
            seq.has_slow_grammar = seq.seq_id in result.grammar_seconds
        if result.grammar_seconds:
            self._until = max(self._until, now + OTHERS_SHARE * sum(result.grammar_seconds.values()))

    def is_turn_of_others(self, now: float) -> bool:
        """Whether sequences with slow grammars wait, if there are others."""
        return now < self._until
