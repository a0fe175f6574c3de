"""Calls as Functionary 3.1 writes them: ``<function=f>``, arguments in JSON and ``</function>``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from text_core.grammar.lark import literal
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.text_parser import MAX_NAME, Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, marked

_BEGIN, _END = "<function=", "</function>"
_SEARCH = search_for(_BEGIN)
_NAME = re.compile("[^\\s<>\ud800-\udfff]+")


class FunctionaryParser(JsonCallParser):
    """Content, and calls between markers."""

    def _read(self) -> Reading[None]:
        while (yield from self._read_until(_SEARCH, self._send_content)) is not None:
            if not (yield from self._read_named_call()):
                self._release()
                continue
            yield from self._read_run(SPACE)
            yield from self._read_closing(_END)
            yield from self._read_run(SPACE)
            self._drop()

    def _read_named_call(self) -> Reading[bool]:
        name = yield from self._read_run(_NAME, MAX_NAME)
        if not is_name(name) or not (yield from self._read_one(">")):
            return False
        yield from self._read_run(SPACE)
        return (yield from self._read_arguments_of(name, _END))


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _BEGIN in template and "<parameter=" not in template and "<tool_call>" not in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    rules = marked(marker(_BEGIN), required=required, single=single)
    calls = [f"{literal(f'{tool.name}>')} arguments_{index}" for index, tool in enumerate(tools)]
    return "\n".join([*rules, f"call: ({' | '.join(calls)}) {marker(_END)}", *argument_rules(tools)])


TOOL_FORMAT = ToolFormat(FunctionaryParser, (), is_in, grammar)
