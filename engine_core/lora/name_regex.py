r"""Regular expressions over names of layers, matched in steps that are counted: adapters come from anyone.

Of Python's syntax, what names need: characters and classes, groups, alternatives, repetitions, ``^`` and ``$``. They
are matched as automata, whose states are made as names need them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

_ALL = (1 << 128) - 1
"""Names are of ASCII; a set of characters is a mask of their codes."""
_MOST_CHARACTERS = 10_000
_MOST_SIZE = 5_000
"""Characters, classes and branches, with all repetitions written out."""
_MOST_DEPTH = 50


class NameRegexError(ValueError):
    """An expression cannot be used; the text says why."""


class Steps:
    """Those that all expressions of an adapter may take together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.left = most

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            problem = f"and others take more than {self._most} steps to match"
            raise NameRegexError(f"{problem}: use fewer of them, with fewer repetitions")


def _mask(characters: str) -> int:
    return sum({1 << ord(each) for each in characters if ord(each) < 128})


_DIGITS = _mask("0123456789")
_WORD = _DIGITS | _mask("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_SPACE = _mask(" \t\n\r\f\v\x1c\x1d\x1e\x1f")
_SETS = {"d": _DIGITS, "w": _WORD, "s": _SPACE, "D": _ALL & ~_DIGITS, "W": _ALL & ~_WORD, "S": _ALL & ~_SPACE}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_BOUNDS = re.compile(r"\{(?!\})([0-9]*)(?:,([0-9]*))?\}")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class _Characters:
    mask: int


@dataclass(frozen=True, slots=True)
class _Edge:
    at_start: bool


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Either:
    branches: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    low: int
    high: int | None


_Node = _Characters | _Edge | _Sequence | _Either | _Repeat


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def parse(self) -> _Node:
        node = self._either(0)
        if self._at < len(self._pattern):
            raise NameRegexError("has a ')' without a '('")
        return node

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _one(self) -> str:
        if not (found := self._next()):
            raise NameRegexError("ends too early")
        self._at += 1
        return found

    def _unsupported(self, what: str) -> NoReturn:
        raise NameRegexError(f"has {what!r}, which is not supported: use characters, classes, groups and repetitions")

    def _either(self, depth: int) -> _Node:
        if depth > _MOST_DEPTH:
            raise NameRegexError(f"has more than {_MOST_DEPTH} groups within each other")
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else _Either(tuple(branches))

    def _sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while (found := self._next()) and found not in "|)":
            part = self._atom(depth)
            parts.append(self._repeated(part))
        return _Sequence(tuple(parts))

    def _atom(self, depth: int) -> _Node:
        match self._one():
            case "(":
                return self._group(depth)
            case "[":
                return _Characters(self._class())
            case ".":
                return _Characters(_ALL & ~_mask("\n"))
            case "^":
                return _Edge(at_start=True)
            case "$":
                return _Edge(at_start=False)
            case "\\":
                return self._escaped()
            case "*" | "+" | "?" | "{" as found:
                self._at -= 1
                if self._bounds() is not None:
                    raise NameRegexError(f"has a {found!r} with nothing to repeat")
                self._at += 1
                return _Characters(_mask(found))
            case found:
                return _Characters(_mask(found))

    def _group(self, depth: int) -> _Node:
        if self._take("?P<"):
            name, _, rest = self._pattern[self._at :].partition(">")
            if not name.isidentifier():
                self._unsupported("(?P<")
            self._at = len(self._pattern) - len(rest)
        elif self._next() == "?" and not self._take("?:"):
            self._unsupported("(" + self._pattern[self._at : self._at + 2])
        inner = self._either(depth + 1)
        if not self._take(")"):
            raise NameRegexError("has a '(' without a ')'")
        return inner

    def _escaped(self) -> _Node:
        found = self._one()
        if found in "AZ":
            return _Edge(at_start=found == "A")
        return _Characters(self._escape(found))

    def _escape(self, found: str) -> int:
        if found in _SETS:
            return _SETS[found]
        if found in _CONTROLS:
            return _mask(_CONTROLS[found])
        if found in _LETTERS:
            self._unsupported(f"\\{found}")
        return _mask(found)

    def _class(self) -> int:
        negated, mask, first = self._take("^"), 0, True
        while first or self._next() != "]":
            first = False
            low = self._one()
            part = self._in_class(low)
            if self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at):
                self._at += 1
                part = self._range(part, self._in_class(self._one()))
            mask |= part
        self._at += 1
        return _ALL & ~mask if negated else mask

    def _in_class(self, found: str) -> int:
        return self._escape(self._one()) if found == "\\" else _mask(found)

    def _range(self, low: int, high: int) -> int:
        if low.bit_count() != 1 or high.bit_count() != 1 or low > high:
            self._unsupported("a range of other than ASCII characters in ascending order")
        return (high << 1) - low

    def _repeated(self, part: _Node) -> _Node:
        start = self._at
        if (bounds := self._bounds()) is None:
            return part
        if isinstance(part, _Edge):
            raise NameRegexError("has an anchor that is repeated")
        self._take("?")  # fewest or most: the same names match
        if (self._next() and self._next() in "*+?") or self._bounds() is not None:
            self._unsupported(self._pattern[start : self._at + 1])
        return _Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        if (found := _BOUNDS.match(self._pattern, self._at)) is None:
            return None  # or a brace that is meant
        low, high = found[1], found[2]
        if max(len(low), len(high or "")) > 4:
            raise NameRegexError(f"is larger than {_MOST_SIZE} characters when its repetitions are written out")
        self._at = found.end()
        least = int(low or 0)
        most = least if high is None else int(high) if high else None
        if most is not None and most < least:
            raise NameRegexError("has a repetition with its bounds the wrong way round")
        return least, most


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction: characters to pass, an edge to be at, or places to go on from; with none, the end."""

    mask: int = 0
    at_start: bool | None = None
    onward: tuple[int, ...] = ()


class NameRegex:
    """Says whether names begin with a match, as ``re.match``. Raises ``NameRegexError``, when matching, too."""

    def __init__(self, pattern: str, steps: Steps) -> None:
        """``steps``: those left for all expressions of an adapter."""
        if len(pattern) > _MOST_CHARACTERS:
            raise NameRegexError(f"is longer than {_MOST_CHARACTERS} characters")
        self._steps = steps
        steps.take(len(pattern))
        self._program: list[_Step] = []
        self._emit(_Parser(pattern).parse())
        self._add(_Step())
        self._states: dict[tuple[tuple[int, ...], int, bool], tuple[int, ...]] = {}

    def matches(self, name: str) -> bool:
        """Whether ``name``, of ASCII, begins with a match."""
        last = len(name) - 1
        state = self._reached([0], at_start=True, at_end=last < 0)
        for place, each in enumerate(name):
            if self._is_match(state):
                return True
            self._steps.take(1)
            key = state, ord(each), place == last
            if (following := self._states.get(key)) is None:
                passed = [here + 1 for here in state if self._program[here].mask >> ord(each) & 1]
                self._steps.take(len(state))
                following = self._states[key] = self._reached(passed, at_start=False, at_end=place == last)
            if not (state := following):
                return False
        return self._is_match(state)

    def _is_match(self, state: tuple[int, ...]) -> bool:
        return bool(state) and state[-1] == len(self._program) - 1

    def _reached(self, places: list[int], *, at_start: bool, at_end: bool) -> tuple[int, ...]:
        """Where characters are passed next, ascending, from ``places``."""
        seen, found = set(places), []
        while places:
            here = places.pop()
            step = self._program[here]
            self._steps.take(1)
            if not step.onward:
                found.append(here)
            elif step.at_start is None or (at_start if step.at_start else at_end):
                places.extend(each for each in step.onward if each not in seen)
                seen.update(step.onward)
        return tuple(sorted(found))

    def _add(self, step: _Step) -> int:
        if len(self._program) > _MOST_SIZE:
            raise NameRegexError(f"is larger than {_MOST_SIZE} characters when its repetitions are written out")
        self._program.append(step)
        return len(self._program) - 1

    def _emit(self, node: _Node) -> None:
        self._steps.take(1)  # what is empty adds nothing, however often it is repeated
        match node:
            case _Characters(mask):
                self._add(_Step(mask=mask))
            case _Edge(at_start):
                self._add(_Step(at_start=at_start, onward=(len(self._program) + 1,)))
            case _Sequence(parts):
                for part in parts:
                    self._emit(part)
            case _Either(branches):
                self._emit_branches(branches)
            case _Repeat(part, low, high):
                for _ in range(low):
                    self._emit(part)
                if high is None:
                    self._emit_loop(part)
                else:
                    self._emit_optional(part, high - low)

    def _emit_branches(self, branches: tuple[_Node, ...]) -> None:
        ends = []
        for branch in branches[:-1]:
            split = self._add(_Step())
            self._emit(branch)
            ends.append(self._add(_Step()))
            self._program[split] = _Step(onward=(split + 1, len(self._program)))
        self._emit(branches[-1])
        for end in ends:
            self._program[end] = _Step(onward=(len(self._program),))

    def _emit_loop(self, part: _Node) -> None:
        split = self._add(_Step())
        self._emit(part)
        self._add(_Step(onward=(split,)))
        self._program[split] = _Step(onward=(split + 1, len(self._program)))

    def _emit_optional(self, part: _Node, count: int) -> None:
        splits = []
        for _ in range(count):
            splits.append(self._add(_Step()))
            self._emit(part)
        for split in splits:
            self._program[split] = _Step(onward=(split + 1, len(self._program)))
