"""Counts reasoning tokens, which a parser recognizes only after reading past them, and tracks where reasoning ends."""

from __future__ import annotations

from collections import deque


class ReasoningMeter:
    """Counts a token if the text at its beginning is reasoning or a reasoning marker."""

    def __init__(self) -> None:
        self.tokens = 0
        self.in_reasoning = False
        """Whether the parser is between the markers of reasoning."""
        self.end = 0
        """Position where the latest reasoning or message header ended, as far as it is known."""
        self.reached_answer = False
        """Whether answer text followed ``end``."""
        self._waiting: deque[list[int]] = deque()
        """Tokens not yet counted: [position, number of tokens that begin there], in order."""

    def begin_token(self, position: int) -> None:
        """A token begins at ``position``, in characters."""
        if self._waiting and self._waiting[-1][0] == position:
            self._waiting[-1][1] += 1
        else:
            self._waiting.append([position, 1])

    def reach(self, position: int, *, reasoning: bool) -> None:
        """The parser classified the text between the last position reached and ``position``."""
        self.reached_answer = not reasoning
        if reasoning:
            self.end = position
        while self._waiting and self._waiting[0][0] < position:
            tokens = self._waiting.popleft()[1]
            if reasoning:
                self.tokens += tokens
