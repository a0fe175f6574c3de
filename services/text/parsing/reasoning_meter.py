"""Counts the tokens of reasoning, which a parser can tell only once it has read past them."""

from __future__ import annotations

from collections import deque


class ReasoningMeter:
    """A token counts if the text from its beginning on is reasoning, or a marker of it."""

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens of reasoning so far."""
        self._waiting: deque[list[int]] = deque()
        """Positions at which tokens begin that are not yet counted, and how many begin there."""

    def begin_token(self, position: int) -> None:
        """A token begins after so many characters."""
        if self._waiting and self._waiting[-1][0] == position:
            self._waiting[-1][1] += 1
        else:
            self._waiting.append([position, 1])

    def reach(self, position: int, *, reasoning: bool) -> None:
        """The parser has found what the text up to a position is, from the one reached before."""
        while self._waiting and self._waiting[0][0] < position:
            tokens = self._waiting.popleft()[1]
            if reasoning:
                self.tokens += tokens
