"""Maps content, which a parser sends only after reading past it, to the tokens that wrote it."""

from __future__ import annotations

from collections import deque


class ContentTokens:
    """The tokens of one choice that are not yet classified as content or not.

    Tokens whose text a later token completes, such as bytes of one character, count with that token.
    """

    def __init__(self) -> None:
        self._count = 0
        """Number of tokens begun."""
        self._waiting: deque[tuple[int, int]] = deque()
        """(position in the text, first token that begins there), in order."""

    def begin_token(self, position: int) -> None:
        """The next token begins at ``position``, in characters."""
        if not self._waiting or self._waiting[-1][0] != position:
            self._waiting.append((position, self._count))
        self._count += 1

    def take(self, begin: int, end: int) -> range:
        """The tokens with text between two positions of content. Later calls must be for later text."""
        waiting = self._waiting
        while len(waiting) > 1 and waiting[1][0] <= begin:
            waiting.popleft()
        first = last = waiting[0][1] if waiting else self._count
        while waiting and waiting[0][0] < end:
            waiting.popleft()
            last = waiting[0][1] if waiting else self._count
        return range(first, last)
