"""Converts the arguments of a call by Gemma to JSON, incrementally: ``a:<|"|>x<|"|>,b:[1]}`` → ``{"a": "x", …}``.

Keys are bare words or texts. A bare word as a value is JSON or one of Python's constants; otherwise, and if it is long,
it is a text. What begins with an ordinary quote is a string to the closing one, as JSON and Python write it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from text_core.parsing.argument_types import ALL, TEXT, json_of
from text_core.parsing.json_scanner import MALFORMED, MAX_DEPTH
from text_core.parsing.marks import mark, marker_text
from text_core.parsing.python_scanner import StringScanner
from text_core.parsing.step_scanner import StepScanner

_MAX_WORD = 256
"""Characters of a bare word that are held, or of white space that may be its end. Longer ones are texts."""
_TEXT = re.compile("[^<\ud800-\udfff]+")
_KEY = re.compile("[^,:{}\\[\\]<\ud800-\udfff]+")
_WORD = re.compile("[^,{}\\[\\]<\ud800-\udfff]+")
_CLOSING = {"{": "}", "[": "]"}


class GemmaScanner(StepScanner):
    """Scans the text after the opening brace, up to the closing one."""

    def __init__(self, quote: str) -> None:
        """``quote``: the token before and behind a text; it begins with ``<``."""
        super().__init__(self._item)
        self._quotes, self._marked = quote, mark(quote)
        self._out.append("{")
        self._stack = ["}"]
        """Closing brackets of the open ones."""
        self._first = True
        """Whether no item has followed the last opening bracket."""
        self._quote = ""
        """What has been read of a quote that is spelled out."""
        self._after_quote: Callable[[str, int], int] = self._item
        """What follows the quote that is being read."""
        self._string = StringScanner()
        """Of a text in ordinary quotes."""
        self._word = ""
        """What is held of a bare word."""
        self._is_long = False
        """Whether the bare word is a text, whose beginning has been sent."""
        self._is_key = False

    def _item(self, text: str, at: int) -> int:
        """After an opening bracket or a comma."""
        character, closing = text[at], self._stack[-1]
        if character.isspace():
            return at + 1
        if character == closing:
            return self._close(at)
        if not self._first:
            self._out.append(", ")
        self._first = False
        self._is_key = closing == "}"
        return self._value(text, at)

    def _value(self, text: str, at: int) -> int:
        """A value, or a key."""
        character = text[at]
        if character.isspace():
            self._step = self._value
            return at + 1
        if character in ("<", self._marked):
            self._out.append('"')
            return self._begin_quote(self._in_text, text, at)
        if character in "'\"":
            self._out.append('"')
            self._string, self._step = StringScanner(character), self._in_string
            return at + 1
        if character in _CLOSING and not self._is_key and len(self._stack) < MAX_DEPTH:
            self._stack.append(_CLOSING[character])
            self._out.append(character)
            self._first, self._step = True, self._item
            return at + 1
        if _KEY.match(character) is None:
            return MALFORMED
        self._word, self._is_long, self._step = "", False, self._in_word
        return at

    def _begin_quote(self, then: Callable[[str, int], int], text: str, at: int) -> int:
        self._quote, self._after_quote, self._step = "", then, self._in_quote
        return self._in_quote(text, at)

    def _in_quote(self, text: str, at: int) -> int:
        """The quote before a text."""
        if text[at] == self._marked and not self._quote:
            self._step = self._after_quote
            return at + 1
        if not self._quotes.startswith(self._quote + text[at]):
            self._send(self._quote)
            return MALFORMED
        self._quote += text[at]
        if self._quote == self._quotes:
            self._quote, self._step = "", self._after_quote
        return at + 1

    def _in_text(self, text: str, at: int) -> int:
        """Within a text, whose end may have begun."""
        if text[at] == self._marked and not self._quote:
            return self._end_text(at)
        if self._quote or text[at] == "<":
            longer = self._quote + text[at]
            if not self._quotes.startswith(longer):  # what seemed to be a quote is text
                self._send(self._quote)
                self._quote = ""
                return at
            self._quote = longer
            return self._end_text(at) if longer == self._quotes else at + 1
        run = _TEXT.match(text, at)
        end = at + 1 if run is None else run.end()
        self._send(marker_text(text[at:end]))
        return end

    def _send(self, text: str) -> None:
        self._out.append(json.dumps(text, ensure_ascii=False)[1:-1])

    def _end_text(self, at: int) -> int:
        self._quote = ""
        self._out.append('"')
        self._end_item()
        return at + 1

    def _end_item(self) -> None:
        """A value or a key has ended."""
        self._step = self._colon if self._is_key else self._next

    def _in_string(self, text: str, at: int) -> int:
        """Within a text in ordinary quotes."""
        end, string = self._string.feed(text, at)
        self._out.append(string)
        if self._string.done:
            self._end_item()
        return MALFORMED if end == at else end

    def _in_word(self, text: str, at: int) -> int:
        run = (_KEY if self._is_key else _WORD).match(text, at)
        if run is not None:
            self._word += run[0]
            self._send_long_word()
            return run.end()
        if self._is_long:
            self._out.append('"')
        else:
            word = self._word.strip()
            found = None if self._is_key else json_of(word, ALL - TEXT)
            self._out.append(found or json.dumps(word, ensure_ascii=False))
        self._end_item()
        return at

    def _send_long_word(self) -> None:
        """Send what is known of a word that is a text: all but white space, which may be its end."""
        if len(self._word) <= _MAX_WORD and not self._is_long:
            return
        if not self._is_long:
            self._is_long = True
            self._out.append('"')
        at = max(len(self._word.rstrip()), len(self._word) - _MAX_WORD)
        self._send(self._word[:at])
        self._word = self._word[at:]

    def _colon(self, text: str, at: int) -> int:
        if text[at].isspace():
            return at + 1
        if text[at] != ":":
            return MALFORMED
        self._out.append(": ")
        self._is_key, self._step = False, self._value
        return at + 1

    def _next(self, text: str, at: int) -> int:
        """After an item."""
        if text[at].isspace():
            return at + 1
        if text[at] == self._stack[-1]:
            return self._close(at)
        if text[at] != ",":
            return MALFORMED
        self._step = self._item
        return at + 1

    def _close(self, at: int) -> int:
        closing = self._stack.pop()
        self.done = not self._stack
        self._out.append(closing)
        self._first, self._step = False, self._next
        return at + 1
