"""Stop strings found in growing text, with what must be held back because it may become one.

While no stop string has begun, text is skipped with one regular-expression search for a first character. From there on
the state is the longest end of the text that begins a stop string; whether it goes on is looked up in the sorted stop
strings. So a request costs nothing to set up, however many it brings: an automaton of the largest set would take 10 ms.

Of several matches the one that *ends first* counts, and of those that end together the longest: that is the match
known earliest, and it does not depend on how the text was cut into tokens or calls.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_STOP_STRINGS = 64
"""Stop strings per request."""
MAX_STOP_STRING_BYTES = 1024
"""UTF-8 bytes of one stop string; at least 1."""
MAX_STOP_STRINGS_TOTAL_BYTES = 8192
"""UTF-8 bytes of a request's stop strings together."""


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string found."""

    stop: str
    end: int
    """Characters of the text given to ``find`` through the stop string's last one."""


class StopStrings:
    """One set of stop strings; immutable, shared by all choices that have them."""

    __slots__ = ("_first", "_last", "_longest_first", "_sorted")

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ``ValueError`` if there are none, or too many, or an empty one."""
        if not stops or not all(stops):
            raise ValueError("stop strings must not be empty")
        if len(stops) > MAX_STOP_STRINGS:
            raise ValueError(f"{len(stops)} stop strings: expected at most {MAX_STOP_STRINGS}")
        self._sorted = sorted(set(stops))
        self._longest_first = tuple(sorted(self._sorted, key=len, reverse=True))
        self._first = re.compile("[" + "".join(re.escape(first) for first in {stop[0] for stop in stops}) + "]")
        self._last = frozenset(stop[-1] for stop in stops)

    def find(self, begun: str, text: str, ignore: bool = False) -> tuple[str, StopMatch | None]:
        """Continue through ``text`` from ``begun``, the end of the text before it that may become a stop string.

        Returns that end after ``text``, and the first match. With ``ignore``, matches that end in ``text`` do not count
        and all of it is read; otherwise reading ends at the first.
        """
        position, length = 0, len(text)
        while position < length:
            if not begun:
                begin = self._first.search(text, position)
                if begin is None:
                    return "", None
                position = begin.start()
            begun += text[position]
            position += 1
            if not ignore and begun[-1] in self._last and begun.endswith(self._longest_first):
                stop = next(stop for stop in self._longest_first if begun.endswith(stop))
                return "", StopMatch(stop, position)
            begun = self._beginning_in(begun)
        return begun, None

    def _beginning_in(self, text: str) -> str:
        """The longest end of ``text`` that begins a stop string and is shorter than it."""
        while not self._begins(text):
            begin = self._first.search(text, 1)
            if begin is None:
                return ""
            text = text[begin.start() :]
        return text

    def _begins(self, text: str) -> bool:
        """Whether ``text`` begins a longer stop string: if one does, it is the next in order."""
        after = bisect_right(self._sorted, text)
        return after < len(self._sorted) and self._sorted[after].startswith(text)


@lru_cache(maxsize=64)
def stop_strings(stops: tuple[str, ...]) -> StopStrings | None:
    """``stops`` to look for, or None if there are none; kept for the choices of a request."""
    return StopStrings(stops) if stops else None
