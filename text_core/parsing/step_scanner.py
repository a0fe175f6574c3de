"""The base of scanners that convert a notation to JSON incrementally, each step in its own method."""

from __future__ import annotations

from collections.abc import Callable

from text_core.parsing.json_scanner import MALFORMED


class StepScanner:
    """Scans text that comes in pieces."""

    def __init__(self, step: Callable[[str, int], int]) -> None:
        self.done = False
        self._out: list[str] = []
        """The JSON of what has been scanned, not yet returned."""
        self._step = step
        """Scans at an index; returns the index after what it scanned, or ``MALFORMED``."""

    def feed(self, text: str, at: int) -> tuple[int, str]:
        """Like ``JsonScanner.feed``."""
        while at < len(text) and not self.done:
            after = self._step(text, at)
            if after == MALFORMED:
                break
            at = after
        out, self._out = self._out, []
        return at, "".join(out)
