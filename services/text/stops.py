"""Stop strings found in growing text, with what must be held back because it may become one.

All stop strings of a request are matched together by one automaton (Aho and Corasick, "Efficient string matching: an
aid to bibliographic search", 1975), at a cost per character that does not depend on how many there are. While no stop
string has begun, text is skipped with one regular-expression search for a first character.

Of several matches the one that *ends first* counts, and of those that end together the longest: that is the match
known earliest, and it does not depend on how the text was cut into tokens or calls.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MAX_STOP_STRINGS = 64
"""Stop strings per request."""
MAX_STOP_STRING_BYTES = 1024
"""UTF-8 bytes of one stop string; at least 1."""
MAX_STOP_STRINGS_TOTAL_BYTES = 8192
"""UTF-8 bytes of a request's stop strings together."""

_CHARACTER_BITS = 21
_CHARACTER_MASK = (1 << _CHARACTER_BITS) - 1


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string found."""

    stop: str
    end: int
    """Characters of the text given to ``find`` through the stop string's last one."""


class StopAutomaton:
    """The automaton of one set of stop strings; immutable, shared by all choices that have them.

    A state is the longest end of the text so far that begins a stop string; state 0 is none. Edges are kept flat, at
    about 100 bytes each, since a request may bring 8192 of them.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ``ValueError`` if there is no stop string, or an empty one."""
        if not stops or not all(stops):
            raise ValueError("stop strings must not be empty")
        self._edges: dict[int, int] = {}
        """By ``_key`` of state and character."""
        self._failure = array("I", [0])
        self._match: list[str | None] = [None]
        self.held = array("I", [0])
        """By state: how many characters at the end of the text may become a stop string with what follows."""
        for stop in stops:
            self._insert(stop)
        self._link()
        self._first = re.compile("[" + "".join(re.escape(stop[0]) for stop in stops) + "]")

    def find(self, state: int, text: str, ignore: bool = False) -> tuple[int, StopMatch | None]:
        """Continue from ``state`` through ``text``; returns the state after it and the first match.

        With ``ignore``, matches that end in ``text`` do not count and all of it is read; otherwise reading ends at
        the first.
        """
        position, length = 0, len(text)
        while position < length:
            if not state:
                begin = self._first.search(text, position)
                if begin is None:
                    return 0, None
                position = begin.start()
            state = self._follow(state, text[position])
            position += 1
            stop = self._match[state]
            if stop is not None and not ignore:
                return state, StopMatch(stop, position)
        return state, None

    def _follow(self, state: int, character: str) -> int:
        edges = self._edges
        following = edges.get(_key(state, character))
        while following is None and state:
            state = self._failure[state]
            following = edges.get(_key(state, character))
        return following or 0

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self._edges.get(_key(state, character))
            if following is None:
                following = self._edges[_key(state, character)] = len(self._match)
                self._failure.append(0)
                self._match.append(None)
                self.held.append(self.held[state] + 1)  # the depth, until linked
            state = following
        self._match[state] = stop

    def _link(self) -> None:
        """By depth: failure links, the longest match at each state, and what each state holds back."""
        depth = self.held[:]
        parents = {key >> _CHARACTER_BITS for key in self._edges}
        for key, state in sorted(self._edges.items(), key=lambda edge: depth[edge[1]]):
            parent, character = key >> _CHARACTER_BITS, chr(key & _CHARACTER_MASK)
            suffix = self._follow(self._failure[parent], character) if parent else 0
            self._failure[state] = suffix
            self._match[state] = self._match[state] or self._match[suffix]
            if state not in parents:
                self.held[state] = self.held[suffix]


def _key(state: int, character: str) -> int:
    return state << _CHARACTER_BITS | ord(character)


@lru_cache(maxsize=64)
def stop_automaton(stops: tuple[str, ...]) -> StopAutomaton | None:
    """The automaton of ``stops``, or None if there are none; kept, since clients repeat their stop strings."""
    return StopAutomaton(stops) if stops else None
