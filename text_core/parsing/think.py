"""Reasoning at the beginning of an answer, between markers, as most models write it: ``<think>…</think>``.

Line breaks next to a marker belong to it. A template may have opened the reasoning, so that the answer begins inside;
a model may then open it again. Marker text later in the answer is content; a special token is a marker anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, partial

from text_core.parsing.format import ReasoningFormat
from text_core.parsing.marks import mark
from text_core.parsing.parts import PartWriter
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.parsing.text_parser import Reading, ReadingParser, TextParser, search_for_texts

_LINE_BREAKS = re.compile(r"[\r\n]+")


@dataclass(frozen=True)
class ThinkForm:
    """What surrounds reasoning."""

    opening: str
    closing: str
    markers: tuple[str, ...]
    """Texts, or parts of them, that may be special tokens."""
    answer_ends: tuple[str, ...] = ()
    """What may end the answer, and is not of it."""
    answer_begin: str = ""
    """What may begin it, and is not of it."""

    @cached_property
    def beginning(self) -> re.Pattern[str]:
        """Finds ``opening``, at the beginning."""
        return search_for_texts([self.marked(self.opening), self.opening])

    @cached_property
    def later(self) -> re.Pattern[str]:
        """Finds ``opening`` as special tokens, and ``answer_ends``."""
        if self.answer_ends:
            ends = [*self.answer_ends, *(marked for end in self.answer_ends if (marked := self.marked(end)) != end)]
            return search_for_texts([self.marked(self.opening), *ends], before=r"[\r\n]")
        return search_for_texts([self.marked(self.opening)], before="")

    @cached_property
    def end(self) -> re.Pattern[str]:
        """Finds ``closing``, with line breaks before it."""
        return search_for_texts([self.marked(self.closing), self.closing], before=r"[\r\n]")

    def marked(self, text: str) -> str:
        """``text`` with marks in place of its markers."""
        for marker in self.markers:
            text = text.replace(marker, mark(marker))
        return text


class ThinkParser(ReadingParser):
    """Reads reasoning; feeds the text after it to the next parser."""

    def __init__(
        self, writer: PartWriter, answer: TextParser, meter: ReasoningMeter, begins_inside: bool, *, form: ThinkForm
    ) -> None:
        self._answer = answer
        self._form = form
        self._meter = meter
        self._begins_inside = begins_inside
        super().__init__(writer)

    def finish(self) -> None:
        super().finish()
        self._answer.finish()

    def _read(self) -> Reading[None]:
        inside = (yield from self._read_beginning()) or self._begins_inside
        if not inside:
            yield from self._drop_answer_begin()
        while True:
            self._meter.in_reasoning = inside
            if inside:
                self._meter.reach(self._position, reasoning=True)
                yield from self._drop_line_breaks()
                marker = yield from self._read_until(self._form.end, self._send_reasoning)
                self._meter.in_reasoning = False
                yield from self._drop_line_breaks()
                yield from self._drop_answer_begin()
            else:
                marker = yield from self._read_until(self._form.later, self._send_answer)
                if marker in self._form.answer_ends:
                    self._drop()
                    continue
            if marker is None:
                return
            inside = not inside

    def _read_beginning(self) -> Reading[bool]:
        """Read the white space and marker at the beginning; returns whether there is a marker."""
        while True:
            found = self._form.beginning.match(self._text, self._at)
            if found is not None and found["full"]:
                self._hold(found.end())
                return True
            if found is None or self._ended:
                return False
            yield

    def _drop_answer_begin(self) -> Reading[None]:
        begin = self._form.answer_begin
        if begin and (yield from self._read_one(begin, self._form.marked(begin))) is not None:
            self._meter.reach(self._position, reasoning=False)
            self._drop()

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


def _between(
    opening: str, closing: str, *markers: str, answer_begin: str = "", answer_ends: tuple[str, ...] = ()
) -> ReasoningFormat:
    """Reasoning between two texts, which are special tokens or have ``markers`` that are."""
    form = ThinkForm(opening, closing, markers or (opening, closing), answer_ends, answer_begin)
    return ReasoningFormat(
        partial(ThinkParser, form=form),
        form.markers,
        lambda template: opening in template and closing in template,
        opening,
        closing,
        answer_begin,
    )


_K3_OPEN, _K3_CLOSE = "<|open|>{}<|sep|>", "<|close|>{}<|sep|>"
_SOLAR_OPEN = ("<|think|>", "<|end|>", "<|begin|>", "<|content|>")
REASONING_FORMATS = {
    "mistral": _between("[THINK]", "[/THINK]"),
    "gemma4": _between("<|channel>thought", "<channel|>", "<|channel>", "<channel|>"),
    "cohere": _between("<|START_THINKING|>", "<|END_THINKING|>"),
    "seed_oss": _between("<seed:think>", "</seed:think>"),
    "minimax_m3": _between("<mm:think>", "</mm:think>"),
    "apertus": _between("<|inner_prefix|>", "<|inner_suffix|>"),
    "hy3": _between("<think:opensource>", "</think:opensource>"),
    "kimi_vl": _between("◁think▷", "◁/think▷"),
    "apriel": replace(
        _between("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", answer_ends=("[END FINAL RESPONSE]",)),
        is_in=lambda template: "[BEGIN FINAL RESPONSE]" in template,
    ),
    "solar_open": replace(
        _between("<|think|>", "<|end|><|begin|>assistant", *_SOLAR_OPEN, answer_begin="<|content|>"),
        is_in=lambda template: "<|begin|>assistant<|think|>" in template,
        prompt_end="<|think|><|end|><|begin|>assistant",
    ),
    "kimi_k3": replace(
        _between(
            _K3_OPEN.format("think"),
            _K3_CLOSE.format("think"),
            *("<|open|>", "<|close|>", "<|sep|>"),
            answer_begin=_K3_OPEN.format("response"),
            answer_ends=(_K3_CLOSE.format("response"), _K3_CLOSE.format("message")),
        ),
        prompt_end=_K3_OPEN.format("response"),
    ),
    "think": replace(_between("<think>", "</think>"), is_in=lambda template: "</think>" in template),
}
"""Keyed by name; the most common one comes last, as templates of others mention it, too."""
