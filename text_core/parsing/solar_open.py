"""Calls as Solar Open writes them, between special tokens: id, name and arguments; after text, in a new message."""

from __future__ import annotations

import re
from collections.abc import Sequence

from text_core.grammar.lark import FREE_TEXT, literal
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import JsonCallParser, is_name
from text_core.parsing.marks import mark
from text_core.parsing.text_parser import MAX_NAME, Reading, search_for_texts
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, marked

_END_MESSAGE, _BEGIN_MESSAGE, _CONTENT = "<|end|>", "<|begin|>", "<|content|>"
_BEGIN_ALL, _BEGIN, _NAMED, _ARGUMENTS, _END, _END_ALL = _OWN = (
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|calls|>",
)
MARKERS = (*_OWN, _END_MESSAGE, _BEGIN_MESSAGE)
_NEXT_MESSAGE = f"{_END_MESSAGE}{_BEGIN_MESSAGE}assistant{_BEGIN_ALL}"
_SEARCH = search_for_texts(
    [
        _NEXT_MESSAGE,
        f"{mark(_END_MESSAGE)}{mark(_BEGIN_MESSAGE)}assistant{mark(_BEGIN_ALL)}",
        *(text for marker in (_BEGIN_ALL, _BEGIN) for text in (marker, mark(marker))),
    ]
)
_ID = re.compile(r"[\w.:-]+")
_NAME = re.compile("[^\\s<{\ud800-\udfff]+")


class SolarOpenParser(JsonCallParser):
    """Content, and calls between markers."""

    def _read(self) -> Reading[None]:
        yield from self._read_sections(_SEARCH, self._read_marked_call, _END_ALL, begin=_BEGIN)

    def _read_marked_call(self) -> Reading[bool]:
        written = yield from self._read_run(_ID, MAX_NAME)
        if not (yield from self._read_marker(_NAMED)):
            return False
        name = yield from self._read_run(_NAME, MAX_NAME)
        if not is_name(name) or not (yield from self._read_marker(_ARGUMENTS)):
            return False
        return (yield from self._read_closed_call(name, _END, written or None))


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _NAMED in template and _ARGUMENTS in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    rules = marked(marker(_BEGIN_ALL), required=required, single=True)
    content = marker(_CONTENT)
    if not required and content.startswith("<"):  # a message begins with it
        after = f"{marker(_NEXT_MESSAGE)} call"
        rules = [f"start: {marker(_BEGIN_ALL)} call | {content}? TEXT ({after})?", f"TEXT: {FREE_TEXT}"]
    calls = [f"{literal(tool.name)} {marker(_ARGUMENTS)} arguments_{index}" for index, tool in enumerate(tools)]
    rules += [
        f"call: one{'' if single else ' one*'} {marker(_END_ALL)}",
        f"one: {marker(_BEGIN)} ID {marker(_NAMED)} ({' | '.join(calls)}) {marker(_END)}",
        "ID: /[a-z0-9]{10}/",
        *argument_rules(tools),
    ]
    return "\n".join(rules)


TOOL_FORMAT = ToolFormat(SolarOpenParser, MARKERS, is_in, grammar)
