"""Reasoning at the beginning of an answer, as most models write it: ``<think>…</think>``.

Line breaks next to a marker belong to it. A template may have opened the reasoning, so that the answer begins inside;
a model may then open it again. Marker text later in the answer is content; a special token is a marker anywhere.
"""

from __future__ import annotations

import re

from text_core.parsing.format import ReasoningFormat
from text_core.parsing.marks import mark
from text_core.parsing.parts import PartWriter
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.parsing.text_parser import Reading, ReadingParser, TextParser, search_for

_OPEN, _CLOSE = MARKERS = ("<think>", "</think>")
_BEGINNING = search_for(_OPEN)
_LATER = re.compile(f"(?P<full>{mark(_OPEN)})")
_SEARCH_CLOSE = search_for(_CLOSE, before=r"[\r\n]")
_LINE_BREAKS = re.compile(r"[\r\n]+")


class ThinkParser(ReadingParser):
    """Reads reasoning; feeds the text after it to the next parser."""

    def __init__(self, writer: PartWriter, answer: TextParser, meter: ReasoningMeter, begins_inside: bool) -> None:
        self._answer = answer
        self._meter = meter
        self._begins_inside = begins_inside
        super().__init__(writer)

    def finish(self) -> None:
        super().finish()
        self._answer.finish()

    def _read(self) -> Reading[None]:
        inside = (yield from self._read_beginning()) or self._begins_inside
        while True:
            self._meter.in_reasoning = inside
            if inside:
                self._meter.reach(self._position, reasoning=True)
                yield from self._drop_line_breaks()
                marker = yield from self._read_until(_SEARCH_CLOSE, self._send_reasoning)
                self._meter.in_reasoning = False
                yield from self._drop_line_breaks()
            else:
                marker = yield from self._read_until(_LATER, self._send_answer)
            if marker is None:
                return
            inside = not inside

    def _read_beginning(self) -> Reading[bool]:
        """Read the white space and marker at the beginning; returns whether there is a marker."""
        while True:
            found = _BEGINNING.match(self._text, self._at)
            if found is not None and found["full"]:
                self._hold(found.end())
                return True
            if found is None or self._ended:
                return False
            yield

    def _drop_line_breaks(self) -> Reading[None]:
        yield from self._read_run(_LINE_BREAKS)
        self._meter.reach(self._position, reasoning=True)
        self._drop()

    def _send_reasoning(self, text: str) -> None:
        self._meter.reach(self._position, reasoning=True)
        self._writer.reasoning(text)

    def _send_answer(self, text: str) -> None:
        self._meter.reach(self._position, reasoning=False)
        for piece, origin in self._with_origins(text):
            self._answer.feed(piece, origin)


def is_in(template: str) -> bool:
    """Whether a template writes reasoning in this format."""
    return _CLOSE in template


REASONING_FORMAT = ReasoningFormat(ThinkParser, MARKERS, is_in, _OPEN, _CLOSE)
