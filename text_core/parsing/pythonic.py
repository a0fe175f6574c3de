"""Calls in Python's notation: ``[f(a=1, b="x"), g()]``, in Llama 4 between ``<|python_start|>`` and ``<|python_end|>``.

At the start of an answer, a list counts as calls if their tools are known; after the marker it counts anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set

from text_core.grammar.json_schema import checked_schema
from text_core.grammar.lark import literal
from text_core.parsing.described_arguments import described_arguments
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.python_scanner import ArgumentsScanner
from text_core.parsing.text_parser import MAX_NAME, MAX_SPACE, Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, regex_text, unmarked

_START, _END = MARKERS = ("<|python_start|>", "<|python_end|>")
_SEARCH = search_for(_START)
_NAME = re.compile(r"[\w.-]+")


class PythonicParser(JsonCallParser):
    """A list of calls at the beginning or after a marker, and content."""

    def _read(self) -> Reading[None]:
        yield from self._read_run(SPACE, MAX_SPACE)
        allowed: Set[str] | None = self._tool_names
        if (yield from self._read_marker(_START)):
            allowed = None
        while True:
            if not (yield from self._read_list(allowed)):
                self._release()
            if (yield from self._read_until(_SEARCH, self._send_content)) is None:
                return
            allowed = None

    def _read_list(self, allowed: Set[str] | None) -> Reading[bool]:
        yield from self._read_run(SPACE, MAX_SPACE)
        separator = "," if (yield from self._read_one("[")) else None
        while separator == ",":
            yield from self._read_run(SPACE)
            name = yield from self._read_run(_NAME, MAX_NAME)
            if not is_name(name) or (allowed is not None and name not in allowed):
                return False
            if not (yield from self._read_one("(")):
                return False
            self._begin_call(name)
            if not (yield from self._read_value(None, self._send_arguments, ArgumentsScanner())):
                return False
            self._in_call = False
            yield from self._read_run(SPACE)
            separator = yield from self._read_one(",", "]")
        if separator is None:
            return False
        yield from self._read_run(SPACE)
        yield from self._read_closing(_END)
        yield from self._read_run(SPACE)
        self._drop()
        return True


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _START in template or "[func_name" in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``. Values are JSON, which means the same here."""
    names = "|".join(regex_text(tool.name) for tool in tools)
    rules = unmarked(rf"\s*\[\s*(?:{names})\(", marker(_START), required=required)
    # "[f(" is one terminal, because free text that begins with "[" would be taken for the longer one
    first = [f'{literal(f"[{tool.name}(")} arguments_{index} ")"' for index, tool in enumerate(tools)]
    later = [f'{literal(f", {tool.name}(")} arguments_{index} ")"' for index, tool in enumerate(tools)]
    rules += [f'calls: first {"" if single else "later*"} "]"', f"first: {' | '.join(first)}"]
    rules += [] if single else [f"later: {' | '.join(later)}"]
    for index, tool in enumerate(tools):
        rules += _arguments(tool, index) if tool.strict else [f"arguments_{index}: any_arguments"]
    rules += [
        'any_arguments: (any_argument (", " any_argument)*)?',
        f"any_argument: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/ {literal('=')} any_value",
        f"any_value: %json {checked_schema('{}')}",
    ]
    return "\n".join(rules)


def _arguments(tool: ToolSpec, index: int) -> list[str]:
    """Rules of a tool's arguments, in the order of its properties; optional ones may be left out."""
    arguments = described_arguments(
        tool, index, "pythonic", allowed=str.isidentifier, expected="a name that Python allows"
    )
    rules = []
    for number, each in enumerate(arguments):
        schema = checked_schema(json.dumps(each.schema), field=f"tools[{index}].parameters_json")
        rules.append(f"value_{index}_{number}: %json {schema}")
        here = f"{literal(each.name + '=')} value_{index}_{number} more_{index}_{number + 1}"
        first, more = f"first_{index}_{number}: {here}", f'more_{index}_{number}: ", " {here}'
        if not each.required:
            first, more = f"{first} | first_{index}_{number + 1}", f"{more} | more_{index}_{number + 1}"
        rules += [first, more]
    count = len(arguments)
    return [*rules, f"first_{index}_{count}: ", f"more_{index}_{count}: ", f"arguments_{index}: first_{index}_0"]


TOOL_FORMAT = ToolFormat(PythonicParser, MARKERS, is_in, grammar, needs_names=True)
