"""Scans one JSON value in text that arrives in pieces, and finds where it ends or becomes malformed.

The state is a stack of open brackets and a few characters, independent of the value's size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from string import hexdigits

MAX_DEPTH = 128
"""Maximum number of open brackets."""

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING_TEXT = re.compile('[^"\\\\\x00-\x1f\ud800-\udfff]+')
_CONTROL = re.compile(r"[\x00-\x1f]+")
_DIGITS = re.compile("[0-9]*")
_UNICODE_ESCAPE = len("u00e9")
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}

_NUMBER: dict[str, dict[str, str]] = {
    "sign": {"0": "zero", "1": "integer"},
    "zero": {".": "point", "e": "exponent"},
    "integer": {"1": "integer", ".": "point", "e": "exponent"},
    "point": {"1": "fraction"},
    "fraction": {"1": "fraction", "e": "exponent"},
    "exponent": {"+": "power sign", "1": "power"},
    "power sign": {"1": "power"},
    "power": {"1": "power"},
}
"""Transitions of the number state machine: state → kind of character (1: any digit) → state."""
_KINDS = dict.fromkeys("0123456789", "1") | {".": ".", "e": "e", "E": "e", "+": "+", "-": "+"}
_NUMBER_ENDS = frozenset({"zero", "integer", "fraction", "power"})

MALFORMED = -1


class JsonScanner:
    """Scans one value; white space may precede it."""

    __slots__ = ("_in_key", "_number", "_repairs", "_stack", "_step", "_word_left", "done", "held")

    def __init__(self, *, repairs_escapes: bool = True) -> None:
        self.done = False
        """Whether the value is complete."""
        self.held = ""
        """What has been read of an escape behind its backslash, and is sent once it is whole."""
        self._repairs = repairs_escapes
        """Whether a backslash that begins no escape is one of the string's text."""
        self._stack: list[str] = []
        """Closing brackets of the open ones."""
        self._step: Callable[[str, int], int] = self._value
        """Scans at an index; returns the index after what it scanned, or ``MALFORMED``."""
        self._in_key = False
        self._word_left = ""
        """Rest of true, false or null."""
        self._number = ""
        """State within a number."""

    def feed(self, text: str, at: int) -> tuple[int, str]:
        """Scan ``text`` from ``at`` on. Returns the index where the scan ended, and the JSON scanned.

        If it ended before the end of ``text``, the value is done, or malformed from there on. The JSON is the text
        itself, except that control characters within strings are escaped, and backslashes that begin no escape.
        """
        begin, length, parts = at, len(text), []
        while at < length and not self.done:
            after = self._step(text, at)
            if after == MALFORMED:
                repaired, after = self._repaired(text, at)
                if after == MALFORMED:
                    break
            elif self.held:
                repaired, self.held = (self.held, "") if len(self.held) == _UNICODE_ESCAPE else ("", self.held)
            else:
                at = after
                continue
            parts += [text[begin:at], repaired]
            begin = at = after
        return at, "".join([*parts, text[begin:at]])

    def _repaired(self, text: str, at: int) -> tuple[str, int]:
        """JSON for what is malformed within a string, and where that ends; or ``MALFORMED``."""
        if self._step == self._string and (control := _CONTROL.match(text, at)) is not None:
            return json.dumps(control[0])[1:-1], control.end()
        if self._repairs and self._step in (self._escape, self._hex):
            escape, self.held, self._step = self.held, "", self._string
            return "\\" + escape, at
        return "", MALFORMED

    def _value(self, text: str, at: int) -> int:
        character = text[at]
        if character in " \t\n\r":
            return _end(_SPACE, text, at)
        if character == '"':
            self._step = self._string
        elif character in "{[" and len(self._stack) < MAX_DEPTH:
            self._stack.append("}" if character == "{" else "]")
            self._step = self._first
        elif character in "-0123456789":
            self._number = {"-": "sign", "0": "zero"}.get(character, "integer")
            self._step = self._in_number
        elif character in _WORDS:
            self._word_left = _WORDS[character]
            self._step = self._in_word
        else:
            return MALFORMED
        return at + 1

    def _first(self, text: str, at: int) -> int:
        """After an opening bracket."""
        if text[at] == self._stack[-1]:
            return self._close(at)
        return self._key(text, at) if self._stack[-1] == "}" else self._value(text, at)

    def _key(self, text: str, at: int) -> int:
        if text[at] in " \t\n\r":
            return _end(_SPACE, text, at)
        if text[at] != '"':
            return MALFORMED
        self._in_key, self._step = True, self._string
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        if text[at] in " \t\n\r":
            return _end(_SPACE, text, at)
        if text[at] != ":":
            return MALFORMED
        self._step = self._value
        return at + 1

    def _next(self, text: str, at: int) -> int:
        """After a value within brackets."""
        character, closing = text[at], self._stack[-1]
        if character in " \t\n\r":
            return _end(_SPACE, text, at)
        if character == closing:
            return self._close(at)
        if character != ",":
            return MALFORMED
        self._step = self._key if closing == "}" else self._value
        return at + 1

    def _close(self, at: int) -> int:
        self._stack.pop()
        self._complete()
        return at + 1

    def _complete(self) -> None:
        """A value has ended."""
        self.done = not self._stack
        self._step = self._next

    def _string(self, text: str, at: int) -> int:
        if text[at] == '"':
            if self._in_key:
                self._in_key, self._step = False, self._colon
            else:
                self._complete()
            return at + 1
        if text[at] == "\\":
            self._step = self._escape
            return at + 1
        after = _end(_STRING_TEXT, text, at)
        return after if after > at else MALFORMED

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self.held, self._step = "u", self._hex
        elif text[at] in '"\\/bfnrt':
            self._step = self._string
        else:
            return MALFORMED
        return at + 1

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in hexdigits:
            return MALFORMED
        self.held += text[at]
        if len(self.held) == _UNICODE_ESCAPE:
            self._step = self._string
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        if text[at] != self._word_left[0]:
            return MALFORMED
        self._word_left = self._word_left[1:]
        if not self._word_left:
            self._complete()
        return at + 1

    def _in_number(self, text: str, at: int) -> int:
        character, leads_to = text[at], _NUMBER[self._number]
        following = leads_to.get(character) or leads_to.get(_KINDS.get(character, ""))
        if following is not None:
            self._number = following
            return max(at + 1, _end(_DIGITS, text, at)) if "1" in _NUMBER[following] else at + 1
        if self._number not in _NUMBER_ENDS:
            return MALFORMED
        self._complete()
        return at


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where the match of ``pattern`` at ``at`` ends; ``at`` if there is none."""
    found = pattern.match(text, at)
    return at if found is None else found.end()
