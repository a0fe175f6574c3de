"""Messages in channels, as gpt-oss writes them (the harmony format).

The prompt ends with ``<|start|>assistant``. Each message has a header (``<|channel|>analysis<|message|>``) and a body,
and ends with ``<|end|>``, ``<|call|>`` or ``<|return|>``. The body is reasoning in the channel analysis, a call's
arguments if the header says ``to=functions.f``, else content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from text_core.grammar.lark import FREE_TEXT, literal, until
from text_core.parsing.format import ReasoningFormat, ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.marks import mark, marker_text
from text_core.parsing.parts import KnownTools, PartWriter
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.parsing.text_parser import MAX_NAME, MAX_SPACE, Plain, Reading, TextParser, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules


def _forms(*markers: str) -> tuple[str, ...]:
    """The markers as text and as marks of special tokens."""
    return (*markers, *map(mark, markers))


_START, _CHANNEL, _CONSTRAIN, _MESSAGE, _END, _CALL, _RETURN = MARKERS = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)
_OPENING = "<|channel|>analysis<|message|>"
_CLOSING = "<|end|><|start|>assistant<|channel|>final<|message|>"

_ENDS = (_END, _CALL, _RETURN)
_IN_HEADER = _forms(_CHANNEL, _CONSTRAIN, _MESSAGE)
_HEADER_TEXT = re.compile("[^<\ud800-\udfff]+")
_MAX_HEADER_PARTS = 6
"""Maximum pieces of text in a header, each followed by a marker."""
_SEARCH_HEADER = search_for(_START, _CHANNEL, before="")
_SEARCH_END = search_for(_START, _CHANNEL, *_ENDS, before="")
_REASONING = re.compile(r"<\|channel\|>\s*analysis\b")
_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")


class HarmonyParser(JsonCallParser):
    """Reads reasoning and calls; feeds the rest to the next parser."""

    def __init__(
        self,
        writer: PartWriter,
        answer: TextParser,
        meter: ReasoningMeter,
        begins_inside: bool,
        *,
        calls: bool,
        reasoning: bool,
    ) -> None:
        """``calls``, ``reasoning``: whether to recognize them; otherwise they are content."""
        self.answer = answer
        self._meter = meter
        self._begins_inside = begins_inside
        self._calls = calls
        self._reasoning = reasoning
        self._in_reasoning = False
        super().__init__(writer, KnownTools())

    def finish(self) -> None:
        super().finish()
        self.answer.finish()

    def _read(self) -> Reading[None]:
        header = _OPENING if self._begins_inside else (yield from self._read_first_header())
        while True:
            if header is not None:
                self._in_reasoning = self._reasoning and _REASONING.search(header) is not None
                self._meter.in_reasoning = self._in_reasoning
                self._drop()
                self._meter.end = self._position
                marker = yield from self._read_body(header)
                if marker in _ENDS:
                    self._drop()
                self._in_reasoning = self._meter.in_reasoning = False
            else:
                self._release()
            if header is None or marker in _ENDS:
                marker = yield from self._read_until(_SEARCH_HEADER, self._send)
            if marker is None:
                return
            header = yield from self._read_header(marker)

    def _read_first_header(self) -> Reading[str | None]:
        yield from self._read_run(SPACE, MAX_SPACE)
        begun = yield from self._read_one("to=", *_forms(_START, _CHANNEL))
        return None if begun is None else (yield from self._read_header(marker_text(begun)))

    def _read_header(self, begun: str) -> Reading[str | None]:
        """Read and hold the rest of a header; returns the header, None if it is not well-formed."""
        header, self._meter.reached_answer = begun, False
        for _ in range(_MAX_HEADER_PARTS):
            header += yield from self._read_run(_HEADER_TEXT, MAX_NAME)
            marker = yield from self._read_one(*_IN_HEADER)
            if marker is None:
                return None
            header += marker_text(marker)
            if header.endswith(_MESSAGE):
                return header
        return None

    def _read_body(self, header: str) -> Reading[str | None]:
        """Read a message and hold its end marker; returns the marker, None if the answer ended."""
        function = _FUNCTION.search(header) if self._calls else None
        if function is not None and is_name(function[1]):
            self._begin_call(function[1])
            yield from self._read_run(SPACE)
            is_empty = yield from self._is_empty(_START, _CHANNEL, *_ENDS, may_end=True)
            if is_empty:
                self._send_no_arguments()
            if not is_empty and not (yield from self._read_arguments()):
                self._release()
            else:
                yield from self._read_run(SPACE)
                if (marker := (yield from self._read_closing(*_ENDS))) is not None:
                    return marker
                self._drop()
        return (yield from self._read_until(_SEARCH_END, self._send))

    def _send(self, text: str) -> None:
        if not text:
            return
        self._meter.reach(self._position, reasoning=self._in_reasoning)
        if self._in_reasoning:
            self._writer.reasoning(text)
        else:
            self._send_content(text)

    def _send_content(self, text: str) -> None:
        for piece, origin in self._with_origins(text):
            self.answer.feed(piece, origin)

    def _send_arguments(self, text: str) -> None:
        self._meter.reach(self._position, reasoning=False)
        super()._send_arguments(text)

    def _drop(self) -> None:
        self._meter.reach(self._position, reasoning=self._in_reasoning)
        super()._drop()


def call_parser(writer: PartWriter, tools: KnownTools) -> TextParser:
    """A parser of calls alone."""
    return HarmonyParser(writer, Plain(writer), ReasoningMeter(), False, calls=True, reasoning=False)


def reasoning_parser(writer: PartWriter, answer: TextParser, meter: ReasoningMeter, begins_inside: bool) -> TextParser:
    """A parser of reasoning, and of calls if the next parser would parse them in this format."""
    calls = isinstance(answer, HarmonyParser)
    rest = answer.answer if isinstance(answer, HarmonyParser) else answer
    return HarmonyParser(writer, rest, meter, begins_inside, calls=calls, reasoning=True)


def is_in(template: str) -> bool:
    """Whether a template writes this format."""
    return _CHANNEL in template and _MESSAGE in template


def grammar(
    tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker, final: str | None = None
) -> str:
    """The grammar of an answer, its reasoning included; see ``format.MakeGrammar``. It ends with its first call.

    ``final``: an expression for a last message that may come instead of a call.
    """
    del single  # a model waits for the result of each call
    text = f"{FREE_TEXT} {marker(_END)}" if marker(_END).startswith("<") else "ended"
    form = f'(" " {marker(_CONSTRAIN)} "json" | " json")?'
    channels = r"/analysis|commentary/" if required else r"/analysis|commentary|final/"
    behind = [f"{literal(tool.name)} {form} {marker(_MESSAGE)} arguments_{i}" for i, tool in enumerate(tools)]
    before = [
        f'{literal(tool.name)} {marker(_CHANNEL)} "commentary" {form} {marker(_MESSAGE)} arguments_{i}'
        for i, tool in enumerate(tools)
    ]
    header = f"{marker(_CHANNEL)} CHANNEL {marker(_MESSAGE)}"
    last = "" if required else f" | message* {header} TEXT"
    if final is not None:
        last = f' | message* {marker(_CHANNEL)} "final" {marker(_MESSAGE)} {final}'
    rules = [
        f"start: message* call{last}",
        f"message: {header} {text} {marker(_START + 'assistant')}",
        f'call: " to=functions." ({" | ".join(before)})',
        f' | {marker(_CHANNEL)} "commentary to=functions." ({" | ".join(behind)})',
        f"CHANNEL: {channels}",
        f"ended[lazy]: {until(literal(_END))}",
        f"TEXT: {FREE_TEXT}",
        *argument_rules(tools),
    ]
    return "\n".join(rules)


TOOL_FORMAT = ToolFormat(
    call_parser,
    MARKERS,
    is_in,
    grammar,
    grammar_has_reasoning=True,
    reasoning_end=_END + _START + "assistant",
    forced_end=_END + _START + "assistant" + _CHANNEL,
    forced_end_before_calls=_END + _START + "assistant" + _CHANNEL + "commentary",
    grammar_beside_form=partial(grammar, final="@form"),
)
REASONING_FORMAT = ReasoningFormat(reasoning_parser, MARKERS, is_in, _OPENING, _CLOSING, begins_with_header=True)
