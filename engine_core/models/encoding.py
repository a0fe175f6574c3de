"""The encoding of one picture, which may stop between layers and go on in a later step.

Towers are plain functions, those of transformers as well, so an encoding runs in a greenlet: a stack of its own in the
same thread. It stops where its attention reports rows, and nowhere else. Where it stops depends on counts alone, and
nothing that it computes depends on where it stops.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from greenlet import getcurrent, greenlet

from engine_core.media import Picture
from engine_core.models.vision_model import Encoded


class Encoding:
    """Advanced, and dropped, by the thread that made it."""

    def __init__(self, encode: Callable[[Picture], Encoded], picture: Picture) -> None:
        """``encode``: ``VisionModel.encode``."""
        self.rows = 0
        """Rows of queries that have attended so far, over all layers: the measure of progress."""
        self._stop_at = math.inf
        self._stack = _Stack(self, lambda: encode(picture))

    def finish(self) -> Encoded:
        """Go on to the end."""
        encoded = self.advance(math.inf)
        assert encoded is not None
        return encoded

    def advance(self, rows: float) -> Encoded | None:
        """Go on until ``rows`` rows have attended; returns the embeddings at the end, None before."""
        if self.rows >= rows:
            return None
        self._stop_at = rows
        self._stack.parent = getcurrent()
        encoded: Encoded | None = self._stack.switch()
        return encoded

    def count(self, rows: int) -> None:
        """``rows`` more have attended; called from within."""
        self.rows += rows
        if self.rows >= self._stop_at:
            assert self._stack.parent is not None
            self._stack.parent.switch(None)


class _Stack(greenlet):
    def __init__(self, encoding: Encoding, run: Callable[[], Encoded]) -> None:
        super().__init__(run)
        self.encoding = encoding


def count_rows(rows: int) -> None:
    """Report that ``rows`` rows have attended; a picture's encoding may stop here."""
    current = getcurrent()
    if isinstance(current, _Stack):
        current.encoding.count(rows)
