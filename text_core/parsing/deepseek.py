"""Calls as DeepSeek's models write them, between special tokens.

V3 and R1 write ``<｜tool▁call▁begin｜>function<｜tool▁sep｜>f``, a line break and the arguments in a fence; V3.1
``<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}``. Both end with ``<｜tool▁call▁end｜>``; other tokens surround all calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from text_core.grammar.lark import literal
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.text_parser import MAX_NAME, Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, marked

_BEGIN_ALL, _BEGIN, _SEPARATOR, _END, _END_ALL = MARKERS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_SEARCH = search_for(_BEGIN_ALL, _BEGIN)
_NAME = re.compile("[^\\s<{\ud800-\udfff]+")


class DeepseekParser(JsonCallParser):
    """Content, and calls between markers."""

    def _read(self) -> Reading[None]:
        yield from self._read_sections(_SEARCH, self._read_marked_call, _END_ALL, begin=_BEGIN)

    def _read_marked_call(self) -> Reading[bool]:
        name = yield from self._read_run(_NAME, MAX_NAME)
        if not (yield from self._read_marker(_SEPARATOR)):
            return False
        yield from self._read_run(SPACE)
        closings = [_END]
        if not (yield from self._is_empty(_END)) and (yield from self._peek()) != "{":
            name = yield from self._read_run(_NAME, MAX_NAME)
            yield from self._read_run(SPACE)
            if (yield from self._read_one("```json")):
                closings.append("```")
            yield from self._read_run(SPACE)
        if not is_name(name) or not (yield from self._read_arguments_of(name, *closings)):
            return False
        yield from self._read_run(SPACE)
        yield from self._read_closing("```")
        yield from self._read_run(SPACE)
        yield from self._read_closing(_END)
        self._drop()
        return True


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _BEGIN in template or _BEGIN_ALL in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``. The model chooses V3's form or V3.1's."""
    separator = marker(_SEPARATOR)
    older = [literal(f"{tool.name}\n```json\n") + f" arguments_{index}" for index, tool in enumerate(tools)]
    newer = [f"{literal(tool.name)} {separator} arguments_{index}" for index, tool in enumerate(tools)]
    rules = marked(marker(_BEGIN_ALL), required=required, single=True)
    more = "" if single else r' ("\n"? one)*'
    rules += [
        f"call: one{more} {marker(_END_ALL)}",
        f"one: {marker(_BEGIN)} (older | newer) {marker(_END)}",
        f'older: "function" {separator} ({" | ".join(older)}) "\\n```"',
        f"newer: {' | '.join(newer)}",
        *argument_rules(tools),
    ]
    return "\n".join(rules)


TOOL_FORMAT = ToolFormat(DeepseekParser, MARKERS, is_in, grammar)
