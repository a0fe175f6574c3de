"""Reads calls with JSON arguments, and calls that are JSON as a whole: ``{"name": …, "arguments": …}``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Set
from typing import Protocol

from text_core.parsing.json_scanner import JsonScanner
from text_core.parsing.marks import mark
from text_core.parsing.parts import KnownTools, PartWriter
from text_core.parsing.text_parser import MAX_HELD, MAX_NAME, Reading, ReadingParser

SPACE = re.compile(r"\s+")

_SIMPLE_STRING = re.compile(f'"[^"\\\\\x00-\x1f\ud800-\udfff]{{0,{MAX_NAME - 2}}}"')


class Scanner(Protocol):
    """Scans one value in text that arrives in pieces, like ``JsonScanner``."""

    done: bool

    def feed(self, text: str, at: int) -> tuple[int, str]: ...


_MAX_ESCAPED = len("\\ud83d\\ude00")
"""Maximum length of one character's JSON escape."""
_ARGUMENTS = ("arguments", "parameters")
"""Keys of the arguments: formats differ, and models mix them up."""


class JsonCallParser(ReadingParser):
    """Base of the parsers whose arguments, at least, are JSON.

    A method that returns False or None found no call: its caller releases the held text.
    """

    def __init__(self, writer: PartWriter, tools: KnownTools) -> None:
        self._tool_names = tools.names
        self._in_call = False
        """Whether a call has begun whose arguments are incomplete."""
        super().__init__(writer)

    def _read_sections(
        self, search: re.Pattern[str], call: Callable[[], Reading[bool]], closing: str, begin: str | None = None
    ) -> Reading[None]:
        """Read content and calls, each behind a marker that ``search`` finds, and the marker ``closing`` behind them.

        ``begin``: the marker of one call, which may follow another one that ``search`` finds, of all calls together.
        """
        while (marker := (yield from self._read_until(search, self._send_content))) is not None:
            if marker != begin:
                yield from self._read_run(SPACE)
            if marker != begin and begin is not None and not (yield from self._read_marker(begin)):
                self._release()
                continue
            if not (yield from call()):
                self._release()
                continue
            yield from self._read_run(SPACE)
            yield from self._read_closing(closing)
            yield from self._read_run(SPACE)
            self._drop()

    def _read_closed_call(self, name: str, closing: str, call_id: str | None = None) -> Reading[bool]:
        """Read the rest of a call behind its name: the arguments and the marker ``closing``."""
        yield from self._read_run(SPACE)
        if not (yield from self._read_arguments_of(name, closing, call_id=call_id)):
            return False
        yield from self._read_run(SPACE)
        yield from self._read_closing(closing)
        self._drop()
        return True

    def _read_arguments_of(
        self, name: str, *closings: str, call_id: str | None = None, may_end: bool = False
    ) -> Reading[bool]:
        """Begin a call and read its arguments: an object, or nothing as in ``_is_empty``. Anything else is no call."""
        is_empty = yield from self._is_empty(*closings, may_end=may_end)
        if not is_empty and (yield from self._peek()) != "{":
            return False
        self._begin_call(name, call_id)
        if not is_empty:
            return (yield from self._read_arguments())
        self._send_no_arguments()
        return True

    def _is_empty(self, *closings: str, may_end: bool = False) -> Reading[bool]:
        """Whether a call has no arguments: one of ``closings`` comes next, which is not read.

        ``may_end``: or the answer ends, perhaps within a closing one.
        """
        texts = (*closings, *map(mark, closings))
        if (yield from self._follows(*texts)):
            return True
        return may_end and self._ended and any(text.startswith(self._text[self._at :]) for text in texts)

    def _send_no_arguments(self) -> None:
        self._send_arguments("{}")
        self._drop()
        self._in_call = False

    def _read_call(self, allowed: Set[str] | None = None, name_key: str = "name") -> Reading[bool]:
        """Read a call that is one JSON object. It begins once its name is known; unknown keys are dropped.

        ``allowed``: names of tools; an object with another name is no call. Default: any name.
        """
        name: str | None = None
        arguments: list[str] | None = None
        if not (yield from self._read_one("{")):
            return False
        while True:
            key = yield from self._read_key()
            if key is None:
                return False
            if key == name_key and name is None:
                name = yield from self._read_string()
                if name is None or not is_name(name) or (allowed is not None and name not in allowed):
                    return False
                self._begin_call(name)
                self._writer.arguments("".join(arguments or ()))
            elif key in _ARGUMENTS and arguments is None:
                arguments = []
                if not (yield from self._read_arguments(None if name is not None else arguments.append)):
                    return False
                self._in_call = name is not None  # until its object ends
            elif not (yield from self._read_value(MAX_HELD)):
                return False
            yield from self._read_run(SPACE)
            separator = yield from self._read_one(",", "}")
            if separator is None:
                return False
            if separator == "}":
                break
        if name is None:
            return False
        if arguments is None:
            self._writer.arguments("{}")
        self._in_call = False
        self._drop()
        return True

    def _read_named_arguments(self) -> Reading[bool]:
        """Read a call that is one JSON object, with the name as its only key and the arguments behind it."""
        if not (yield from self._read_one("{")):
            return False
        name = yield from self._read_key()
        if name is None or not is_name(name) or (yield from self._peek()) != "{":
            return False
        self._begin_call(name)
        if not (yield from self._read_arguments()):
            return False
        self._in_call = True  # until its object ends
        yield from self._read_run(SPACE)
        if not (yield from self._read_one("}")):
            return False
        self._in_call = False
        self._drop()
        return True

    def _begin_call(self, name: str, call_id: str | None = None) -> None:
        """``call_id``: the call's id, if the model writes one."""
        self._drop()
        self._in_call = True
        self._writer.call(name, call_id)

    def _release(self) -> None:
        if self._in_call and self._ended and self._at == len(self._text):
            self._drop()  # the answer ended within the call: held text is its syntax
        self._in_call = False
        super()._release()

    def _read_arguments(self, early: Callable[[str], None] | None = None) -> Reading[bool]:
        """Read an object: the arguments of the current call; ``early`` takes them if its name is not yet known.

        The object may be quoted in a string, as some models write it; null is an empty object.
        """
        first = yield from self._peek()
        if first == "{" and early is not None:
            return (yield from self._read_value(MAX_HELD, early))
        if first == "{":
            self._drop()
            self._in_call = not (yield from self._read_value(None, self._send_arguments))
            return not self._in_call
        arguments: str | None = None
        if first == '"':
            arguments = yield from self._read_quoted()
        elif first == "n" and (yield from self._read_one("null")):
            arguments = "{}"
        if arguments is None:
            return False
        (early or self._send_arguments)(arguments)
        if early is None:
            self._drop()
            self._in_call = False
        return True

    def _read_quoted(self) -> Reading[str | None]:
        """Read and hold a string that quotes an object; if the answer ends within, returns the object's beginning."""
        pieces: list[str] = []
        is_whole = yield from self._read_value(MAX_HELD, pieces.append)
        if is_whole:
            text = _unquoted("".join(pieces)).strip() or "{}"
        elif self._ended and self._at == len(self._text):
            text = _unquoted_beginning("".join(pieces)).lstrip()
        else:
            return None
        scanner = JsonScanner()
        end, arguments = scanner.feed(text, 0)
        if end < len(text) or (is_whole and not scanner.done) or not "{".startswith(text[:1]):
            return None
        return arguments + scanner.held

    def _send_arguments(self, text: str) -> None:
        self._writer.arguments(text)

    def _read_key(self) -> Reading[str | None]:
        """Read and hold a key and its colon."""
        yield from self._read_run(SPACE)
        key = yield from self._read_string()
        yield from self._read_run(SPACE)
        if key is None or not (yield from self._read_one(":")):
            return None
        yield from self._read_run(SPACE)
        return key

    def _read_string(self) -> Reading[str | None]:
        """Read and hold a string; None if the next value is no string, or longer than ``MAX_NAME``."""
        simple = _SIMPLE_STRING.match(self._text, self._at)
        if simple is not None and self._num_held + len(simple[0]) <= MAX_HELD:  # fast path
            self._hold(simple.end())
            return simple[0][1:-1]
        if (yield from self._peek()) != '"':
            return None
        pieces: list[str] = []
        if not (yield from self._read_value(MAX_NAME, pieces.append)):
            return None
        return str(json.loads("".join(pieces)))

    def _read_value(
        self, hold: int | None, send: Callable[[str], None] | None = None, scanner: Scanner | None = None
    ) -> Reading[bool]:
        """Read and hold a value of at most ``hold`` characters; None: of any length, not held."""
        scanner = scanner or JsonScanner()
        limit = min(hold or 0, MAX_HELD - self._num_held)
        while True:
            if hold is None:
                self._at, piece = scanner.feed(self._text, self._at)
            else:
                length, piece = scanner.feed(self._text[self._at : self._at + limit], 0)
                limit -= length
                self._hold(self._at + length)
            if send is not None:
                send(piece)
            if scanner.done:
                return True
            if self._at < len(self._text) or self._ended:
                if send is not None and isinstance(scanner, JsonScanner):
                    send(scanner.held)
                return False
            yield


def is_name(text: str) -> bool:
    """Whether ``text`` can be a tool's name."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


def _unquoted(string: str) -> str:
    return str(json.loads(string))


def _unquoted_beginning(string: str) -> str:
    """The content of a truncated string, without characters left unfinished at its end."""
    for end in range(len(string), max(0, len(string) - _MAX_ESCAPED), -1):
        try:
            text = _unquoted(string[:end] + '"')
            text.encode()
        except ValueError:
            continue
        return text
    return ""
