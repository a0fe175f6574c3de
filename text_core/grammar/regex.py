r"""Parses regular expressions in the subset that Python's ``re``, ECMAScript and Rust's ``regex`` share, and rewrites
them in Rust's notation, so that the original matches, in all three, every text that the result matches.

Where dialects differ, the narrower reading counts (``\d`` is 0-9, ``\D`` is no digit of any script), or the expression
is refused. Parsing also bounds an expression's cost before llguidance sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn

from text_core.grammar.look_ahead import without_look_ahead

MAX_DEPTH = 50
"""Maximum depth of nested groups."""
MAX_SIZE = 20_000
"""Maximum characters and classes, with all repetitions expanded."""

MAX_OPTIONAL = 500
"""Maximum optional parts in a row: with n, each text that they match has n expressions of n alternatives."""

ANY_TEXT = "(?s:.*)"

_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t-\r\x20"}
_WIDE = {"d": r"\p{Nd}", "w": r"\p{Alphabetic}\p{M}\p{N}\p{Pc}\p{Join_Control}", "s": r"\s\x{1c}-\x{1f}\x{feff}"}
"""The union of the dialects' sets, for complements. llguidance reads \\d and \\w in schemas as ASCII."""
_NO_LINE_END = r"[^\x{a}\x{d}\x{2028}\x{2029}]"
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_BACKSPACE = "\b"
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_MAX_LEADING = 3
"""Maximum look-aheads split off the beginning of a pattern, which bounds the patterns compiled for one text."""
_LEADING = re.compile(r"\^\(\?=(?P<ahead>(?:[^()\[\\]|\\.|\[(?:[^\]\\]|\\.)+\]|\((?:[^()\[\\]|\\.)*\))*+)\)")
"""A look-ahead at the beginning of a pattern; its groups must not be nested."""
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_][A-Za-z0-9_]*>|(?P<flags>[is]*):)")
_FLAGS = re.compile(r"\(\?(?P<flags>[is]+)\)")
_COUNT = re.compile(r"\{(?P<low>[0-9]+)(?P<comma>,(?P<high>[0-9]+)?)?\}")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}|U([0-9A-Fa-f]{8})")
_PROPERTY = re.compile(r"[pP](?:\{[A-Za-z_]{1,40}(?:=[A-Za-z_]{1,40})?\}|[LMNPSZC])")


class RegexError(ValueError):
    """An expression cannot be used; the text says why, and where."""


class _Edge(Enum):
    """An anchor."""

    START = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of an expression, rewritten."""

    text: str
    size: int
    """In the units of ``MAX_SIZE``."""
    branches: tuple[_Branch, ...] = ()
    """A group's alternatives."""
    least: str | None = None
    """The text of a repetition at its lowest count: where any text may stand beside it, that says the same."""
    optional: int = 0
    """The optional parts in a row that it is; 0: it matches no empty text."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """An alternative of a group or of the whole expression."""

    parts: tuple[_Part | _Edge, ...]


def whole_match(pattern: str) -> str:
    """``pattern`` in Rust's notation, to match whole texts.

    The result has no slash, quote or line break. Raises ``RegexError``.
    """
    return "|".join(_anchored(branch, "", "") for branch in _read(pattern))


def search(pattern: str) -> str:
    """An expression in Rust's notation that matches whole texts containing ``pattern``. Raises ``RegexError``."""
    return "|".join(_anchored(branch, ANY_TEXT, ANY_TEXT) for branch in _read(pattern))


def conjuncts(pattern: str) -> list[str]:
    """Patterns whose conjunction is ``pattern``: its leading look-aheads, and the rest.

    Only ``pattern`` if it has none, or cannot be split.
    """
    found: list[str] = []
    rest = pattern
    while len(found) < _MAX_LEADING and (match := _LEADING.match(rest)) is not None:
        found.append(f"^(?:{match['ahead']})")
        rest = f"^{rest[match.end() :]}"
    if not found:
        return [pattern]
    try:
        return [*found, rest] if all(len(_read(each)) == 1 for each in (*found, rest)) else [pattern]
    except RegexError:
        return [pattern]


def size_of(pattern: str) -> int:
    """Size of ``pattern`` in the units of ``MAX_SIZE``. Raises ``RegexError``."""
    return sum(map(_size, _read(pattern)))


def is_optional(pattern: str) -> bool:
    """Whether ``pattern`` matches the empty text. Raises ``RegexError``."""
    return _optional(_read(pattern)) > 0


def _read(pattern: str) -> tuple[_Branch, ...]:
    reader = _Reader(without_look_ahead(pattern))
    branches = reader.alternatives(0)
    if reader.position < len(reader.pattern):
        reader.refuse("there is a ')' without a '('")
    if sum(_size(branch) for branch in branches) > MAX_SIZE:
        raise RegexError(f"is larger than {MAX_SIZE} characters when its repetitions are written out")
    return branches


def _anchored(branch: _Branch, before: str, after: str) -> str:
    """The text of ``branch``, with ``before`` and ``after`` in place of missing anchors."""
    parts = list(branch.parts)
    while parts and parts[0] is _Edge.START:
        before = ""
        parts.pop(0)
    while parts and parts[-1] is _Edge.END:
        after = ""
        parts.pop()
    if len(parts) == 1 and isinstance(parts[0], _Part) and parts[0].branches:
        return "(?:" + "|".join(_anchored(inner, before, after) for inner in parts[0].branches) + ")"
    if any(isinstance(part, _Edge) or _has_edges(part) for part in parts):
        raise RegexError("has an anchor (^ or $) that is not at the beginning or end of the expression")
    texts = [part.text for part in parts if isinstance(part, _Part)]
    for place, beside in ((0, before), (-1, after)):
        if beside == ANY_TEXT and parts and isinstance(part := parts[place], _Part) and part.least is not None:
            texts[place] = part.least
    return before + "".join(texts) + after


def _has_edges(part: _Part) -> bool:
    return any(isinstance(inner, _Edge) or _has_edges(inner) for branch in part.branches for inner in branch.parts)


def _size(branch: _Branch) -> int:
    return sum(part.size for part in branch.parts if isinstance(part, _Part))


def _optional(branches: tuple[_Branch, ...]) -> int:
    """The optional parts in a row of a group of ``branches``; 0 if it matches no empty text."""
    runs = [[part.optional for part in branch.parts if isinstance(part, _Part)] for branch in branches]
    return max((max(1, sum(run)) for run in runs if all(run)), default=0)


def longest_run(weights: Iterable[int]) -> int:
    """The most optional parts in a row; a part of weight 0 is not optional."""
    longest = run = 0
    for weight in weights:
        run = run + weight if weight else 0
        longest = max(longest, run)
    return longest


class _Reader:
    """Reads an expression from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.flags = ""
        """Those that apply to what follows."""
        self._count = 0

    def refuse(self, problem: str) -> NoReturn:
        raise RegexError(f"{problem}, at character {self.position + 1}")

    def alternatives(self, depth: int) -> tuple[_Branch, ...]:
        if depth > MAX_DEPTH:
            self.refuse(f"groups nest deeper than {MAX_DEPTH}")
        branches: list[_Branch] = []
        parts: list[_Part | _Edge] = []
        while (char := self._peek()) not in ("", ")"):
            if char == "|":
                self.position += 1
                branches.append(self._branch(parts))
                parts = []
            elif match := _FLAGS.match(self.pattern, self.position):
                if depth or branches or parts:
                    self.refuse("flags are not at the beginning")
                self.flags += match["flags"]
                self.position = match.end()
            else:
                parts.append(self._repeated(self._atom(depth)))
        return (*branches, self._branch(parts))

    def _branch(self, parts: list[_Part | _Edge]) -> _Branch:
        if longest_run(part.optional for part in parts if isinstance(part, _Part)) > MAX_OPTIONAL:
            self.refuse(f"has more than {MAX_OPTIONAL} optional parts in a row: repeat one with {{0,n}}")
        return _Branch(tuple(parts))

    def _counted(self) -> None:
        self._count += 1
        if self._count > MAX_SIZE:
            raise RegexError(f"has more than {MAX_SIZE} characters and classes")

    def _peek(self) -> str:
        return self.pattern[self.position : self.position + 1]

    def _atom(self, depth: int) -> _Part | _Edge:
        self._counted()
        char = self._peek()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        self.position += 1
        match char:
            case "^":
                return _Edge.START
            case "$":
                return _Edge.END
            case ".":
                return _Part(self._flagged("." if "s" in self.flags else _NO_LINE_END), 1)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self.position -= 1
                self.refuse(f"{char!r} has nothing to repeat")
        return _Part(self._flagged(_quoted(char)), 1)

    def _flagged(self, text: str) -> str:
        return f"(?{''.join(sorted(set(self.flags)))}:{text})" if self.flags else text

    def _group(self, depth: int) -> _Part:
        start, flags = self.position, self.flags
        for opening in _LOOK_AROUND:
            if self.pattern.startswith(opening, start):
                self.refuse("look-around is not supported")
        if match := _GROUP.match(self.pattern, start):
            self.flags += match["flags"] or ""
            self.position = match.end()
        elif self.pattern.startswith("(?", start):
            self.refuse(f"{self.pattern[start : start + 3]!r} is not supported")
        else:
            self.position += 1
        branches = self.alternatives(depth + 1)
        if self._peek() != ")":
            self.position = start
            self.refuse("a '(' is not closed")
        self.position += 1
        self.flags = flags
        texts = ("".join(part.text for part in branch.parts if isinstance(part, _Part)) for branch in branches)
        text, size = "(?:" + "|".join(texts) + ")", 1 + sum(map(_size, branches))
        return _Part(text, size, branches, optional=_optional(branches))

    def _repeated(self, part: _Part | _Edge) -> _Part | _Edge:
        char = self._peek()
        low, high = 0, 0
        if char and char in "*+?":
            self.position += 1
            written, low, high = char, int(char == "+"), 1
        elif char == "{" and (match := _COUNT.match(self.pattern, self.position)):
            self.position = match.end()
            if max(len(match["low"]), len(match["high"] or "")) > 6:
                self.refuse(f"it repeats more than {MAX_SIZE} times")
            low = int(match["low"])
            high = int(match["high"]) if match["high"] else low
            upper = match["high"] or "" if match["comma"] else None
            written = f"{{{low}}}" if upper is None else f"{{{low},{upper}}}"
            if high < low:
                self.refuse(f"the count {written} ends before it begins")
        elif char == "{" and self.pattern.startswith("{,", self.position):
            self.refuse("a count has no lower limit: write {0,n}")
        else:
            return part
        if isinstance(part, _Edge) or _has_edges(part):
            self.refuse("an anchor is repeated")
        if self._peek() == "?":  # lazy: which match is found first makes no difference
            self.position += 1
        following = self._peek()
        if (following and following in "*+?") or _COUNT.match(self.pattern, self.position):
            self.refuse("a repetition is repeated, or possessive")
        least = f"(?:{part.text}){{{low}}}" if low else ""
        optional = int(low == 0 or part.optional > 0)
        return _Part(f"(?:{part.text}){written}", max(1, part.size * max(low, high)), least=least, optional=optional)

    def _escape(self) -> _Part | _Edge:
        letter = self._peek()
        if letter in ("A", "Z", "z"):
            self.position += 1
            return _Edge.START if letter == "A" else _Edge.END
        if letter in ("b", "B"):
            self.refuse("word boundaries are not supported")
        if letter in ("d", "w", "s", "D", "W", "S"):
            self.position += 1
            return _Part(_set(letter, complemented=False), 1)
        if match := _PROPERTY.match(self.pattern, self.position):
            self.position = match.end()
            return _Part(f"\\{match[0]}", 1)
        return _Part(self._flagged(_quoted(self._escaped_char())), 1)

    def _escaped_char(self) -> str:
        """The character of the escape whose backslash has been read."""
        if match := _HEX.match(self.pattern, self.position):
            self.position = match.end()
            code = int(next(filter(None, match.groups())), 16)
            if 0xD800 <= code < 0xDC00:  # ECMAScript without its flag u
                low = _HEX.match(self.pattern, self.position + 1)
                if (
                    low is not None
                    and low[2]
                    and self._peek() == "\\"
                    and 0xDC00 <= (second := int(low[2], 16)) < 0xE000
                ):
                    self.position = low.end()
                    code = 0x10000 + ((code - 0xD800) << 10) + second - 0xDC00
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                self.refuse(f"{code:#x} is not a character")
            return chr(code)
        letter = self._peek()
        following = self.pattern[self.position + 1 : self.position + 2]
        self.position += 1
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c" and following.isascii() and following.isalpha():
            self.position += 1
            return chr(ord(following) % 32)
        if letter == "0" and not following.isdigit():
            return "\0"
        self.position -= 1
        if letter == "":
            self.refuse("it ends in a backslash")
        if letter.isdigit():
            self.refuse("back-references are not supported")
        if letter.isalpha():
            self.refuse(f"the escape '\\{letter}' is not supported")
        self.position += 1
        return letter

    def _class(self) -> _Part:
        start = self.position
        self.position += 1
        negated = self._peek() == "^"
        self.position += negated
        if self._peek() == "]":
            self.refuse("a ']' comes first in its class: write '\\]'")
        members: list[str] = []
        is_wide = negated
        while (char := self._peek()) != "]":
            if char == "":
                self.position = start
                self.refuse("a '[' is not closed")
            self._counted()
            first = self._member(negated)
            rest = self.pattern[self.position : self.position + 2]
            is_wide |= len(first) > 1 or first <= _BACKSPACE
            if len(first) > 1 or not rest.startswith("-") or rest == "-]":
                members.append(first if len(first) > 1 else _quoted(first))
                continue
            self.position += 1
            last = self._member(negated)
            if len(last) > 1:
                members += [_quoted(first), _quoted("-"), last]
            elif last < first:
                self.refuse(f"the range {first}-{last} ends before it begins")
            else:
                members.append(f"{_quoted(first)}-{_quoted(last)}")
        self.position += 1
        text = f"[{'^' if negated else ''}{''.join(members)}]"
        return _Part(self._flagged(_without_backspace(text) if is_wide else text), 1)

    def _member(self, negated: bool) -> str:
        """A single character, or a set's text in Rust's notation."""
        char = self._peek()
        self.position += 1
        if char != "\\":
            return char
        letter = self._peek()
        if letter in ("d", "w", "s", "D", "W", "S"):
            self.position += 1
            return _set(letter, complemented=negated)
        if match := _PROPERTY.match(self.pattern, self.position):
            self.position = match.end()
            return f"\\{match[0]}"
        if letter == "b":
            self.position += 1
            return "\b"
        return self._escaped_char()


def _set(letter: str, *, complemented: bool) -> str:
    r"""A class for ``\d`` and the like, in such a way that the whole means no more than any dialect does."""
    excluding = letter.isupper()
    members = (_WIDE if excluding != complemented else _NARROW)[letter.lower()]
    return _without_backspace(f"[^{members}]") if excluding else f"[{members}]"


def _without_backspace(text: str) -> str:
    r"""A class without U+0008.

    In a JSON string, llguidance 1.9 takes a class of all of ``\b \t \n \f \r`` for one of quotes and backslashes, too.
    """
    return f"[{text}&&[^{_quoted(_BACKSPACE)}]]"


def _quoted(char: str) -> str:
    return char if char.isalnum() and char.isascii() else f"\\x{{{ord(char):x}}}"
