"""Converts the arguments of a Python call to JSON, incrementally: ``a=1, b='x')`` → ``{"a": 1, "b": "x"}``.

Values are literals: strings without prefix, numbers as in JSON, ``True``, ``False``, ``None``, lists, tuples and
dictionaries with string keys. JSON's literals are also accepted.
"""

from __future__ import annotations

import json
import re
from string import hexdigits

from text_core.parsing.json_scanner import MALFORMED, MAX_DEPTH, JsonScanner
from text_core.parsing.step_scanner import StepScanner

_MAX_IDENTIFIER = 256
_WORDS = {python[0]: (python, text) for python, text in (("True", "true"), ("False", "false"), ("None", "null"))}
_WORDS |= {text[0]: (text, text) for _, text in _WORDS.values()}
"""(word, its JSON), which have the same length, keyed by the word's first character."""
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_STRING_TEXT = re.compile("[^'\"\\\\\x00-\x1f\ud800-\udfff]+")
_IN_NAME = re.compile("[^=,()\\[\\]{}'\"\x00-\x1f\ud800-\udfff]")
_NAME = re.compile(rf"(?![0-9*\s]){_IN_NAME.pattern}{{1,{_MAX_IDENTIFIER}}}(?<!\s)")
_ESCAPES = {"a": "\x07", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": ""}
_ESCAPES |= dict(zip("\\'\"/", "\\'\"/", strict=True))
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class StringScanner(StepScanner):
    """Scans the text after a string's opening quote, up to the closing one. JSON's strings are read alike.

    The JSON is without the opening quote.
    """

    def __init__(self, quote: str = '"') -> None:
        super().__init__(self._text)
        self._quote = quote
        self._digits = ""
        """Of an escape, behind the letter that begins it."""
        self._digits_left = 0

    def _text(self, text: str, at: int) -> int:
        run = _STRING_TEXT.match(text, at)
        if run is not None:
            self._out.append(run[0])
            return run.end()
        character = text[at]
        if character == self._quote:
            self._out.append('"')
            self.done = True
        elif character == "\\":
            self._step = self._escape
        elif "\ud800" <= character <= "\udfff":
            return MALFORMED
        else:
            self._out.append(_json_text(character))
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        character = text[at]
        if character in _HEX_DIGITS:
            self._digits, self._digits_left, self._step = character, _HEX_DIGITS[character], self._hex
            return at + 1
        if "\ud800" <= character <= "\udfff":
            return MALFORMED
        self._out.append(_json_text(_ESCAPES.get(character, "\\" + character)))
        self._step = self._text
        return at + 1

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in hexdigits:
            return self._no_escape(at)
        self._digits += text[at]
        self._digits_left -= 1
        if not self._digits_left:
            code = int(self._digits[1:], 16)
            if code > 0x10FFFF:
                return self._no_escape(at + 1)
            self._out.append(f"\\u{code:04x}" if code < 0x10000 else json.dumps(chr(code))[1:-1])
            self._step = self._text
        return at + 1

    def _no_escape(self, at: int) -> int:
        """What seemed to be an escape is text."""
        self._out.append("\\\\" + self._digits)
        self._step = self._text
        return at


class LiteralScanner(StepScanner):
    """Scans one literal; white space may precede it."""

    def __init__(self) -> None:
        super().__init__(self._value)
        self._stack: list[str] = []
        """Closing brackets of the open ones."""
        self._first = True
        """Whether no item has followed the last opening bracket."""
        self._string = StringScanner()
        self._is_key = False
        """Whether the string is a key of a dictionary."""
        self._word = ("", "")
        self._number = JsonScanner()

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
        return self._begin_item(text, at)

    def _begin_item(self, text: str, at: int) -> int:
        if self._stack[-1] == "}":
            if text[at] not in "'\"":
                return MALFORMED
            self._is_key = True
        return self._value(text, at)

    def _value(self, text: str, at: int) -> int:
        character = text[at]
        if character.isspace():
            self._step = self._value
            return at + 1
        if character in "'\"":
            self._string, self._step = StringScanner(character), self._in_string
            self._out.append('"')
        elif character in _CLOSING and len(self._stack) < MAX_DEPTH:
            self._stack.append(_CLOSING[character])
            self._out.append("{" if character == "{" else "[")
            self._first, self._step = True, self._item
        elif character in _WORDS:
            self._word, self._step = _WORDS[character], self._in_word
            return at
        elif character in "-0123456789":
            self._number, self._step = JsonScanner(), self._in_number
            return at
        else:
            return MALFORMED
        return at + 1

    def _next(self, text: str, at: int) -> int:
        """After an item."""
        if not self._stack:  # a word, a number or a string was all
            self.done = True
            return at
        if text[at].isspace():
            return at + 1
        if text[at] == self._stack[-1]:
            return self._close(at)
        if text[at] != ",":
            return MALFORMED
        self._step = self._item
        return at + 1

    def _close(self, at: int) -> int:
        self._out.append(self._closed())
        self.done = not self._stack
        self._first, self._step = False, self._next
        return at + 1

    def _closed(self) -> str:
        """Close the last bracket; returns JSON's."""
        return "}" if self._stack.pop() == "}" else "]"

    def _colon(self, text: str, at: int) -> int:
        if text[at].isspace():
            return at + 1
        if text[at] != ":":
            return MALFORMED
        self._out.append(": ")
        self._step = self._value
        return at + 1

    def _in_string(self, text: str, at: int) -> int:
        end, string = self._string.feed(text, at)
        self._out.append(string)
        if self._string.done:
            self._step = self._colon if self._is_key else self._next
            self._is_key = False
        elif end == at:
            return MALFORMED
        return end

    def _in_word(self, text: str, at: int) -> int:
        word, json_text = self._word
        if text[at] != word[0]:
            return MALFORMED
        self._out.append(json_text[0])
        self._word = (word[1:], json_text[1:])
        if len(word) == 1:
            self._step = self._next
        return at + 1

    def _in_number(self, text: str, at: int) -> int:
        end, number = self._number.feed(text, at)
        self._out.append(number)
        if self._number.done:
            self._step = self._next
        elif end == at:
            return MALFORMED
        return end


class ArgumentsScanner(LiteralScanner):
    """Scans the text after the opening parenthesis, up to the closing one.

    A tool may have names of arguments that Python does not allow, such as ``-A``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stack, self._out = [")"], ["{"]
        self._step = self._item
        self._space = ""
        """What may be the white space between the name of an argument and ``=``."""
        self._num_left = 0
        """Characters that the name may still have."""

    def _begin_item(self, text: str, at: int) -> int:
        if len(self._stack) > 1:
            return super()._begin_item(text, at)
        if not is_argument_name(text[at]):
            return MALFORMED
        self._out.append('"')
        self._space, self._num_left, self._step = "", _MAX_IDENTIFIER, self._name
        return at

    def _name(self, text: str, at: int) -> int:
        """The name of an argument."""
        character = text[at]
        if character == "=":
            self._out.append('": ')
            self._step = self._value
            return at + 1
        if not self._num_left or _IN_NAME.match(character) is None:
            self._out.append(_json_text(self._space))
            return MALFORMED
        self._num_left -= 1
        self._space += character
        if not character.isspace():
            self._out.append(_json_text(self._space))
            self._space = ""
        return at + 1

    def _closed(self) -> str:
        closed = super()._closed()
        return closed if self._stack else "}"


def is_argument_name(text: str) -> bool:
    """Whether ``text`` can be the name of an argument in a call."""
    return _NAME.fullmatch(text) is not None


def _json_text(text: str) -> str:
    """``text`` escaped for a JSON string, without quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
