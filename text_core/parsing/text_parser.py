"""What parsers have in common: a generator that reads text as it comes, and waits for more where it ends.

A parser decides as soon as the text decides, and looks at nothing but the text so far, so that the parts do not depend
on how it was cut. Text that it has read and not sent is *held*; if a call turns out to be none, it becomes content.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Protocol, TypeVar

from text_core.parsing.marks import mark, marker_text
from text_core.parsing.parts import PartWriter

MAX_HELD = 1 << 16
"""Characters that may be held for a call, such as arguments that come before the name. With more it is content."""
MAX_NAME = 256
"""Characters of a tool's name."""
MAX_SPACE = 16
"""Characters of white space held before a possible marker."""

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Reads text, and yields when it needs more."""


class TextParser(Protocol):
    """Takes an answer's text piece by piece, with marks for its markers that are special tokens."""

    def feed(self, text: str, origin: int) -> None:
        """``origin``: where the text begins in the answer's; what lies between it and the text before is not fed."""

    def finish(self) -> None:
        """Send what is held: the answer has ended."""


class Plain:
    """All text is content."""

    def __init__(self, writer: PartWriter) -> None:
        self.feed = writer.content

    def finish(self) -> None:
        """Nothing is ever held."""


def search_for(*markers: str, before: str = r"\s") -> re.Pattern[str]:
    """A pattern that finds the first marker, with the group ``full``, or the beginning of one at the end of the text.

    White space before it, of the class ``before``, belongs to it. A marker is found as a special token, too.
    """
    space = f"{before}{{0,{MAX_SPACE}}}+" if before else ""
    full = "|".join(map(re.escape, [mark(marker) for marker in markers] + list(markers)))
    begun = "|".join(_begun(marker) for marker in markers)
    return re.compile(rf"{space}(?:(?P<full>{full})|(?:{begun})?\Z)")


def _begun(marker: str) -> str:
    """A pattern of the texts that begin ``marker``."""
    pattern = ""
    for character in reversed(marker[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern


class ReadingParser(ABC):
    """A parser whose method ``_read`` reads the whole answer."""

    def __init__(self, writer: PartWriter) -> None:
        self._writer = writer
        self._text = ""
        """What is not yet read, from ``_at`` on."""
        self._at = 0
        self._shifts: deque[tuple[int, int]] = deque()
        """By how many characters the answer's text is ahead of what was fed, from which character on."""
        self._passed = 0
        """Characters read before that text."""
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
        """Characters that were fed and are neither sent nor dropped."""
        return self._num_held + len(self._text) - self._at

    @property
    def _position(self) -> int:
        """Characters read."""
        return self._passed + self._at

    def _read_until(self, pattern: re.Pattern[str], send: Callable[[str], None]) -> Reading[str | None]:
        """Send text up to a marker (see ``search_for``) and hold the marker; None: the answer ended before."""
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

        It ends at ``limit`` characters, or where no more may be held, even in the middle of a longer one.
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
        """Read and hold the one of ``texts`` that comes next; none of them begins another."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            for text in texts:
                if rest.startswith(text):
                    self._hold(self._at + len(text))
                    return text
            if self._ended or not any(text.startswith(rest) for text in texts):
                return None
            yield

    def _read_marker(self, marker: str) -> Reading[bool]:
        """Read and hold a marker, if it comes next, as text or as a special token."""
        return (yield from self._read_one(marker, mark(marker))) is not None

    def _read_closing(self, *markers: str) -> Reading[str | None]:
        """Read and hold the marker that closes a call, if it comes next; of one that the end cuts, what there is."""
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
        """What is held is content after all."""
        self._send_content("".join(self._held))
        self._drop()

    def _send_content(self, text: str) -> None:
        for piece, origin in self._with_origins(text):
            self._writer.content(piece, origin)

    def _with_origins(self, text: str) -> Iterator[tuple[str, int]]:
        """The characters read last, in the pieces that they are in the answer, and where those begin in it."""
        begin, shifts = self._position - len(text), self._shifts
        while text:
            while len(shifts) > 1 and shifts[1][0] <= begin:
                shifts.popleft()
            piece = text if len(shifts) == 1 else text[: shifts[1][0] - begin]
            yield piece, begin + shifts[0][1]
            begin, text = begin + len(piece), text[len(piece) :]

    def _drop(self) -> None:
        """What is held is markers and syntax, which no part shows."""
        self._held.clear()
        self._num_held = 0
