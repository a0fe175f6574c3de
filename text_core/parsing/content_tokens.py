"""Finds the tokens of content, which a parser sends when it has read past them."""

from __future__ import annotations

from collections import deque


class ContentTokens:
    """The tokens of one choice that are not yet known to be of content, or not.

    Tokens whose text is not complete until a later one, such as bytes of one character, count with that one.
    """

    def __init__(self) -> None:
        self._count = 0
        """Tokens begun."""
        self._waiting: deque[tuple[int, int]] = deque()
        """Where tokens begin in the text, in order, and the first token that begins there."""

    def begin_token(self, position: int) -> None:
        """The next token begins after so many characters."""
        if not self._waiting or self._waiting[-1][0] != position:
            self._waiting.append((position, self._count))
        self._count += 1

    def take(self, begin: int, end: int) -> range:
        """The tokens with text between two positions, which are content. Later calls are for later text."""
        waiting = self._waiting
        while len(waiting) > 1 and waiting[1][0] <= begin:
            waiting.popleft()
        first = last = waiting[0][1] if waiting else self._count
        while waiting and waiting[0][0] < end:
            waiting.popleft()
            last = waiting[0][1] if waiting else self._count
        return range(first, last)
