"""Calls as Kimi K2 writes them, between special tokens: ``functions.f:0`` and the arguments.

That text is the call's id: templates show it in later turns, where the model goes on counting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from text_core.grammar.lark import literal
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.text_parser import MAX_NAME, Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, marked

_BEGIN_ALL, _BEGIN, _ARGUMENTS, _END, _END_ALL = MARKERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
_SEARCH = search_for(_BEGIN_ALL, _BEGIN)
_ID = re.compile("[^\\s<{\ud800-\udfff]+")
_PREFIX = "functions."
_NUMBER = re.compile(r":[0-9]{1,6}\Z")


class KimiK2Parser(JsonCallParser):
    """Content, and calls between markers."""

    def _read(self) -> Reading[None]:
        yield from self._read_sections(_SEARCH, self._read_marked_call, _END_ALL, begin=_BEGIN)

    def _read_marked_call(self) -> Reading[bool]:
        yield from self._read_run(SPACE)
        written = yield from self._read_run(_ID, MAX_NAME)
        name = _NUMBER.sub("", written).removeprefix(_PREFIX)
        yield from self._read_run(SPACE)
        if not is_name(name) or not (yield from self._read_marker(_ARGUMENTS)):
            return False
        return (yield from self._read_closed_call(name, _END, written if _NUMBER.search(written) else None))


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _BEGIN in template and _ARGUMENTS in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    rules = marked(marker(_BEGIN_ALL), required=required, single=True)
    calls = [
        f"{literal(f'{_PREFIX}{tool.name}:')} NUMBER {marker(_ARGUMENTS)} arguments_{index}"
        for index, tool in enumerate(tools)
    ]
    rules += [
        f"call: one{'' if single else ' one*'} {marker(_END_ALL)}",
        f"one: {marker(_BEGIN)} ({' | '.join(calls)}) {marker(_END)}",
        "NUMBER: /[0-9]{1,4}/",
        *argument_rules(tools),
    ]
    return "\n".join(rules)


TOOL_FORMAT = ToolFormat(KimiK2Parser, MARKERS, is_in, grammar)
