"""Finds stop strings in growing text, and the partial match at its end, which must be held back.

One regular-expression search for first characters skips the text before a possible match. From there on the state is
the longest suffix of the text that is a prefix of a stop string; a binary search in the sorted stop strings extends it.
An automaton, by contrast, would take 10 ms to build for the largest set of a request.

Of several matches the one that *ends first* counts, and of matches that end together the longest. That match is known
earliest, and does not depend on how the text was split into tokens or calls.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_STOP_STRINGS = 64
"""Maximum number of stop strings of one request."""
MAX_STOP_STRING_BYTES = 1024
"""UTF-8 bytes of one stop string, which must not be empty."""
MAX_STOP_STRINGS_TOTAL_BYTES = 8192
"""UTF-8 bytes of a request's stop strings together."""


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string found in text."""

    stop: str
    end: int
    """Index into the text given to ``find``, after the stop string's last character."""


class StopStrings:
    """One set of stop strings; immutable, shared by all choices of a request."""

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

    def find(self, partial_stop: str, text: str, ignore: bool = False) -> tuple[str, StopMatch | None]:
        """Search ``text``, which follows ``partial_stop``: the suffix of earlier text that may become a stop string.

        Returns that suffix after ``text``, and the first match. With ``ignore``, matches that end in ``text`` do not
        count; otherwise the search ends at the first.
        """
        position, length = 0, len(text)
        while position < length:
            if not partial_stop:
                begin = self._first.search(text, position)
                if begin is None:
                    return "", None
                position = begin.start()
            partial_stop += text[position]
            position += 1
            if not ignore and partial_stop[-1] in self._last and partial_stop.endswith(self._longest_first):
                stop = next(stop for stop in self._longest_first if partial_stop.endswith(stop))
                return "", StopMatch(stop, position)
            partial_stop = self._longest_partial_stop(partial_stop)
        return partial_stop, None

    def _longest_partial_stop(self, text: str) -> str:
        """The longest suffix of ``text`` that is a proper prefix of a stop string."""
        while not self._is_partial_stop(text):
            begin = self._first.search(text, 1)
            if begin is None:
                return ""
            text = text[begin.start() :]
        return text

    def _is_partial_stop(self, text: str) -> bool:
        """Whether ``text`` is a proper prefix of a stop string; if so, the next one in sorted order starts with it."""
        after = bisect_right(self._sorted, text)
        return after < len(self._sorted) and self._sorted[after].startswith(text)


@lru_cache(maxsize=64)
def stop_strings(stops: tuple[str, ...]) -> StopStrings | None:
    """``StopStrings`` of ``stops``, None if empty; cached, so that the choices of a request share it."""
    return StopStrings(stops) if stops else None
