"""The base of parsers: a generator that reads text as it arrives, and yields to wait for more.

A parser decides as early as the text allows, from the text so far alone, so that the parts do not depend on how the
text was split. Text read but not yet sent is *held*; if it turns out not to be a call, it becomes content.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Protocol, TypeVar

from text_core.parsing.marks import mark, marker_text
from text_core.parsing.parts import PartWriter

MAX_HELD = 1 << 16
"""Characters that may be held for a call, such as arguments that precede its name. Longer text is content."""
MAX_NAME = 256
"""Maximum characters of a tool's name."""
MAX_SPACE = 16
"""Maximum white space, in characters, held before a possible marker."""

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Reads text, and yields when it needs more."""


class TextParser(Protocol):
    """Takes an answer's text in pieces, in which marks stand for special tokens that are markers."""

    def feed(self, text: str, origin: int) -> None:
        """``origin``: offset of ``text`` in the answer. Text between the previous piece and it is not fed."""

    def finish(self) -> None:
        """Send the held text at the end of the answer."""


class Plain:
    """All text is content."""

    def __init__(self, writer: PartWriter) -> None:
        self.feed = writer.content

    def finish(self) -> None:
        """Nothing is ever held."""


def search_for(*markers: str, before: str = r"\s") -> re.Pattern[str]:
    """A pattern that finds the first marker (group ``full``), or the beginning of a marker at the end of the text.

    It includes the white space before the marker, of the class ``before``. It also finds marks of special tokens.
    """
    return search_for_texts([*map(mark, markers), *markers], before=before)


def search_for_texts(texts: Sequence[str], *, before: str = r"\s", most: int = MAX_SPACE) -> re.Pattern[str]:
    """Like ``search_for``, of exactly these ``texts``, with at most ``most`` characters of white space."""
    space = f"{before}{{0,{most}}}+" if before else ""
    full = "|".join(map(re.escape, texts))
    beginnings = "|".join(begun(text) for text in texts if len(text) > 1)
    return re.compile(rf"{space}(?:(?P<full>{full})|(?:{beginnings})?\Z)")


def begun(marker: str) -> str:
    """A pattern for the proper prefixes of ``marker``."""
    pattern = ""
    for character in reversed(marker[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern


class ReadingParser(ABC):
    """A parser whose method ``_read`` reads the whole answer."""

    def __init__(self, writer: PartWriter) -> None:
        self._writer = writer
        self._text = ""
        """Text fed last; unread from ``_at`` on."""
        self._at = 0
        self._shifts: deque[tuple[int, int]] = deque()
        """(position in the fed text, offset from there on to add for the position in the answer's text)."""
        self._passed = 0
        """Characters read before ``_text``."""
        self._ended = False
        self._held: list[str] = []
        self._num_held = 0
        self._reading = self._read()
        next(self._reading)

    @abstractmethod
    def _read(self) -> Reading[None]:
        """Read until the end; yields at least once."""

    def feed(self, text: str, origin: int) -> None:
        end = self._passed + len(self._text)
        if not self._shifts or self._shifts[-1][1] != origin - end:
            self._shifts.append((end, origin - end))
        self._passed += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        next(self._reading)

    def finish(self) -> None:
        self._ended = True
        next(self._reading, None)
        self._release()

    @property
    def num_waiting(self) -> int:
        """Characters fed but neither sent nor dropped."""
        return self._num_held + len(self._text) - self._at

    @property
    def _position(self) -> int:
        """Number of characters read."""
        return self._passed + self._at

    def _read_until(self, pattern: re.Pattern[str], send: Callable[[str], None]) -> Reading[str | None]:
        """Send text up to a marker (see ``search_for``) and hold the marker; None: the answer ended first."""
        while True:
            found = pattern.search(self._text, self._at)
            end = len(self._text) if found is None or (self._ended and not found["full"]) else found.start()
            begin, self._at = self._at, end
            send(self._text[begin:end])
            if found is not None and found["full"]:
                self._hold(found.end())
                return marker_text(found["full"])
            if self._ended:
                return None
            yield

    def _peek(self) -> Reading[str]:
        """The next character; empty at the end."""
        while self._at >= len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def _read_run(self, pattern: re.Pattern[str], limit: int = MAX_HELD) -> Reading[str]:
        """Read and hold the longest run of characters that ``pattern`` (a repeated class) matches; returns it.

        It ends after ``limit`` characters, or where no more may be held, even if the run continues.
        """
        run, limit = "", min(limit, MAX_HELD - self._num_held)
        while True:
            found = pattern.match(self._text, self._at, self._at + limit - len(run))
            if found is not None:
                run += found[0]
                self._hold(found.end())
            if self._at < len(self._text) or len(run) >= limit or self._ended:
                return run
            yield

    def _read_one(self, *texts: str) -> Reading[str | None]:
        """Read and hold the next of ``texts``, None if none follows; none may be a prefix of another."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            for text in texts:
                if rest.startswith(text):
                    self._hold(self._at + len(text))
                    return text
            if self._ended or not any(text.startswith(rest) for text in texts):
                return None
            yield

    def _follows(self, *texts: str) -> Reading[bool]:
        """Whether one of ``texts`` comes next, which is not read."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            if any(rest.startswith(text) for text in texts):
                return True
            if self._ended or not any(text.startswith(rest) for text in texts):
                return False
            yield

    def _read_marker(self, marker: str) -> Reading[bool]:
        """Read and hold a marker if it comes next, as text or as a special token."""
        return (yield from self._read_one(marker, mark(marker))) is not None

    def _read_closing(self, *markers: str) -> Reading[str | None]:
        """Read and hold the marker that closes a call, if it comes next; also holds one cut by the answer's end."""
        found = yield from self._read_one(*markers, *map(mark, markers))
        if found is not None:
            return marker_text(found)
        if self._ended and any(marker.startswith(self._text[self._at :]) for marker in markers):
            self._hold(len(self._text))
        return None

    def _hold(self, end: int) -> None:
        """Read up to ``end``, without sending it."""
        if end > self._at:
            self._held.append(self._text[self._at : end])
            self._num_held += end - self._at
            self._at = end

    def _release(self) -> None:
        """Send the held text as content."""
        self._send_content("".join(self._held))
        self._drop()

    def _send_content(self, text: str) -> None:
        for piece, origin in self._with_origins(text):
            self._writer.content(piece, origin)

    def _with_origins(self, text: str) -> Iterator[tuple[str, int]]:
        """Split ``text``, the characters read last, at gaps in the answer; yields pieces and their offsets in it."""
        begin, shifts = self._position - len(text), self._shifts
        while text:
            while len(shifts) > 1 and shifts[1][0] <= begin:
                shifts.popleft()
            piece = text if len(shifts) == 1 else text[: shifts[1][0] - begin]
            yield piece, begin + shifts[0][1]
            begin, text = begin + len(piece), text[len(piece) :]

    def _drop(self) -> None:
        """Discard the held text: markers and syntax, which belong to no part."""
        self._held.clear()
        self._num_held = 0
