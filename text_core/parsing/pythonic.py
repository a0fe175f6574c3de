"""Calls in Python's notation: ``[f(a=1, b="x"), g()]``, in Llama 4 between ``<|python_start|>`` and ``<|python_end|>``.

At the start of an answer, a list counts as calls if their tools are known; after the marker it counts anywhere. LFM2
and OLMo 3 write calls between markers of their own only, OLMo 3 in lines without brackets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from text_core.grammar.json_keywords import without_annotations
from text_core.grammar.json_schema import checked_schema
from text_core.grammar.lark import literal
from text_core.parsing.argument_types import ALL, JsonType, TypeReader
from text_core.parsing.described_arguments import described_arguments
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.parts import KnownTools, PartWriter
from text_core.parsing.python_scanner import ArgumentsScanner, is_argument_name
from text_core.parsing.text_parser import MAX_NAME, MAX_SPACE, Reading, search_for
from text_core.parsing.text_values import words_of_python
from text_core.parsing.tool_grammar import Marker, ToolSpec, marked, other_name, own_names, regex_text, unmarked

_NAME = re.compile(r"[\w.-]+")
_ANY_NAME = r"[^\W\d]\w{0,63}"
"""Names that a grammar allows of arguments that a tool does not list."""
_TEXT = r"""/'([^'\\\x00-\x1f]|\\['"\\nrt])*'/"""
"""A text in single quotes."""


@dataclass(frozen=True, slots=True)
class PythonicForm:
    """What surrounds calls."""

    begin: str
    end: str
    is_list: bool = True
    """Whether calls stand in brackets, with commas between them; otherwise in lines."""

    @property
    def markers(self) -> tuple[str, str]:
        return self.begin, self.end


LLAMA4 = PythonicForm("<|python_start|>", "<|python_end|>")


class MarkedPythonicParser(JsonCallParser):
    """Calls after a marker, and content."""

    def __init__(self, writer: PartWriter, tools: KnownTools, form: PythonicForm) -> None:
        self._form = form
        self._search = search_for(form.begin)
        super().__init__(writer, tools)

    def _read(self) -> Reading[None]:
        while (yield from self._read_until(self._search, self._send_content)) is not None:
            if not (yield from self._read_calls(None)):
                self._release()

    def _read_calls(self, allowed: Set[str] | None) -> Reading[bool]:
        yield from self._read_run(SPACE, MAX_SPACE)
        opened = not self._form.is_list or (yield from self._read_one("[")) is not None
        separator = "," if opened else None
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
            separator = yield from self._read_separator()
        if separator is None:
            return False
        yield from self._read_run(SPACE)
        yield from self._read_closing(self._form.end)
        yield from self._read_run(SPACE)
        self._drop()
        return True

    def _read_separator(self) -> Reading[str | None]:
        """Read what follows a call: ``,`` before another one, ``]`` after the last."""
        if self._form.is_list:
            return (yield from self._read_one(",", "]"))
        return "," if _NAME.match((yield from self._peek())) else "]"


class PythonicParser(MarkedPythonicParser):
    """A list of calls at the beginning or after a marker, and content."""

    def __init__(self, writer: PartWriter, tools: KnownTools) -> None:
        super().__init__(writer, tools, LLAMA4)

    def _read(self) -> Reading[None]:
        yield from self._read_run(SPACE, MAX_SPACE)
        allowed: Set[str] | None = self._tool_names
        if (yield from self._read_marker(LLAMA4.begin)):
            allowed = None
        if not (yield from self._read_calls(allowed)):
            self._release()
        yield from super()._read()


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return LLAMA4.begin in template or "[func_name" in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``. Values are JSON or, the plainest, as Python writes them."""
    names = "|".join(regex_text(tool.name) for tool in tools)
    rules = unmarked(rf"\s*\[\s*(?:{names})\(", marker(LLAMA4.begin), required=required)
    # "[f(" is one terminal, because free text that begins with "[" would be taken for the longer one
    first = [f'{literal(f"[{tool.name}(")} arguments_{index} ")"' for index, tool in enumerate(tools)]
    later = [f'{literal(f", {tool.name}(")} arguments_{index} ")"' for index, tool in enumerate(tools)]
    rules += [f'calls: first {"" if single else "later*"} "]"', f"first: {' | '.join(first)}"]
    rules += [] if single else [f"later: {' | '.join(later)}"]
    return "\n".join([*rules, *_argument_rules(tools)])


def marked_grammar(
    form: PythonicForm, tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker
) -> str:
    """Like ``grammar``, of calls between markers."""
    rules = marked(marker(form.begin), required=required, single=True)
    calls = [f'{literal(f"{tool.name}(")} arguments_{index} ")"' for index, tool in enumerate(tools)]
    begin, between, end = ('"["', '", "', '"]"') if form.is_list else (r'"\n"?', r'"\n"', r'"\n"?')
    more = "" if single else f" ({between} one)*"
    rules += [f"call: {begin} one{more} {end} {marker(form.end)}", f"one: {' | '.join(calls)}"]
    return "\n".join([*rules, *_argument_rules(tools)])


def _argument_rules(tools: Sequence[ToolSpec]) -> list[str]:
    """A rule ``arguments_<index>`` for each tool's arguments, and those that it refers to."""
    rules = []
    for index, tool in enumerate(tools):
        rules += _arguments(tool, index) if tool.strict else _any_arguments(tool, index)
    return [*rules, f"any_value: %json {checked_schema('{}')}"]


def _any_arguments(tool: ToolSpec, index: int) -> list[str]:
    """Rules of the arguments of a tool that is not strict."""
    return [
        f'arguments_{index}: (any_{index} (", " any_{index})*)?',
        f"any_{index}: /{own_names(_ANY_NAME, tool, is_argument_name)}/ {literal('=')} any_value",
    ]


def _arguments(tool: ToolSpec, index: int) -> list[str]:
    """Rules of a tool's arguments, in the order of its properties; optional ones may be left out."""
    expected = "a name without = , \" ' brackets and line breaks, which begins with neither digit nor *"
    arguments = described_arguments(tool, index, "pythonic", allowed=is_argument_name, expected=expected)
    rules, field = [], f"tools[{index}].parameters_json"
    for number, each in enumerate(arguments.listed):
        schema = checked_schema(json.dumps(each.schema), field=field)
        ways = [f"value_{index}_{number}_json", *_of_python(each.schema)]
        rules += [f"value_{index}_{number}: {' | '.join(ways)}", f"value_{index}_{number}_json: %json {schema}"]
        here = f"{literal(each.name + '=')} value_{index}_{number} more_{index}_{number + 1}"
        first, more = f"first_{index}_{number}: {here}", f'more_{index}_{number}: ", " {here}'
        if not each.required:
            first, more = f"{first} | first_{index}_{number + 1}", f"{more} | more_{index}_{number + 1}"
        rules += [first, more]
    first, more = f"first_{index}_{len(arguments.listed)}: ", f"more_{index}_{len(arguments.listed)}: "
    if arguments.others is not False:
        other, name = f"other_{index}", f"OTHER_NAME_{index}"
        rules += [
            f"{other}: {name} {literal('=')} {other}_value",
            f"{name}: {other_name(_ANY_NAME, (each.name for each in arguments.listed))}",
            f"{other}_value: %json {checked_schema(json.dumps(arguments.others), field=field)}",
        ]
        first, more = f'{first}({other} (", " {other})*)?', f'{more}(", " {other})*'
    return [*rules, first, more, f"arguments_{index}: first_{index}_0"]


def _of_python(schema: Any) -> list[str]:
    """Expressions for values that ``schema`` allows and Python writes otherwise than JSON, of the plainest schemas."""
    types = TypeReader(schema).types(schema)
    if not isinstance(schema, Mapping) or types == ALL:
        return []
    ways = words_of_python(schema, types)
    if without_annotations(schema).keys() <= {"type", "enum", "$defs", "definitions"} and JsonType.STRING in types:
        listed = [each for each in schema.get("enum", ()) if isinstance(each, str)]
        ways += [literal(repr(each)) for each in listed] if "enum" in schema else [_TEXT]
    return ways


TOOL_FORMAT = ToolFormat(PythonicParser, LLAMA4.markers, is_in, grammar, needs_names=True)
