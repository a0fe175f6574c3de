"""Counts the tokens of reasoning, which a parser can tell only once it has read past them, and knows where it is."""

from __future__ import annotations

from collections import deque


class ReasoningMeter:
    """A token counts if the text from its beginning on is reasoning, or a marker of it."""

    def __init__(self) -> None:
        self.tokens = 0
        """Tokens of reasoning so far."""
        self.in_reasoning = False
        """Whether the parser is between the markers of reasoning."""
        self.end = 0
        """The position up to which, at least, there was reasoning, or the header of a message, last."""
        self.reached_answer = False
        """Whether text of the answer came after that."""
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
        self.reached_answer = not reasoning
        if reasoning:
            self.end = position
        while self._waiting and self._waiting[0][0] < position:
            tokens = self._waiting.popleft()[1]
            if reasoning:
                self.tokens += tokens
