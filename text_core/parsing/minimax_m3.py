"""Calls as MiniMax-M3 writes them: an element for each argument, named like it, and a token before every tag.

Objects and lists are elements within elements, those of a list named ``item``; all else is text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from text_core.grammar.lark import literal
from text_core.parsing.argument_types import CONTAINERS, ITEM, JsonType, Types
from text_core.parsing.element_values import ElementValues, free_arguments, free_elements
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE
from text_core.parsing.json_scanner import MAX_DEPTH
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, TextValue
from text_core.parsing.text_parser import MAX_NAME, Reading
from text_core.parsing.tool_grammar import Marker, ToolSpec, marked

TOKEN = "]<]minimax[>["
MARKERS = (TOKEN, "<tool_call>", "</tool_call>")
TAGS = Tags(
    begin=(f"{TOKEN}<tool_call>",),
    end=(f"{TOKEN}</tool_call>",),
    name=(f'{TOKEN}<invoke name="', '">'),
    call_end=f"{TOKEN}</invoke>",
    key=(f"{TOKEN}<", ">"),
    value=(),
    value_end=f"{TOKEN}<",
    markers=MARKERS,
    several=True,
)
_EMPTY = {JsonType.ARRAY: "[]", JsonType.OBJECT: "{}"}
_LINE = r'"\n"?'


class MinimaxM3Parser(TaggedCallParser):
    """Content, and calls whose arguments are elements."""

    def _read_argument(self, tool: str, separator: str) -> Reading[bool]:
        tag = yield from self._read_name()
        path: list[str] = []
        """Names of the open elements."""
        closings: list[str] = []
        """Brackets that close the objects and lists among them."""
        while tag is not None and len(path) < MAX_DEPTH:
            in_list = closings[-1:] == ["]"]
            path.append(ITEM if in_list else tag)
            self._drop()
            self._writer.arguments(separator + ("" if in_list else f"{json.dumps(tag, ensure_ascii=False)}: "))
            types, separator = self._types.within(tool, path), ""
            tag = yield from self._read_text(types)
            if tag:
                closings.append("]" if _is_list(types, tag) else "}")
                self._writer.arguments("[" if closings[-1] == "]" else "{")
            elif tag is not None:
                path.pop()
                separator, tag = ", ", (yield from self._read_ends(path, closings))
                if tag == "":
                    return True
        return False

    def _read_text(self, types: Types) -> Reading[str | None]:
        """Read the text in an element, and the next tag: see ``_read_tag_within``."""
        self._value = value = TextValue(self._writer.arguments, types)
        tag: str | None = None
        if (yield from self._read_until(self._tags.value_ends, self._add_to_value)) is not None:
            tag = yield from self._read_rest_of_tag()
            if tag and not value.may_be_elements:
                tag = None
        self._value = None
        if tag == "":
            empty = [text for each, text in _EMPTY.items() if each in types]
            if empty and value.may_be_elements and JsonType.STRING not in types:
                self._writer.arguments(empty[0])
            elif not value.finish():
                return None
            self._drop()
        return tag

    def _read_ends(self, path: list[str], closings: list[str]) -> Reading[str | None]:
        """Read what ends objects and lists, and the tag of what follows in one; empty: all have ended."""
        while closings:
            yield from self._read_run(SPACE)
            tag = yield from self._read_tag_within()
            if tag != "":
                return tag
            self._writer.arguments(closings.pop())
            path.pop()
            self._drop()
        return ""

    def _read_tag_within(self) -> Reading[str | None]:
        """Read a tag: the name of the element that it begins; empty: it ends one, whatever it names; None: no tag."""
        if (yield from self._read_tag(self._tags.value_end)):
            return (yield from self._read_rest_of_tag())
        yield from self._read_closing_of(self._tags.value_end)
        return None

    def _read_rest_of_tag(self) -> Reading[str | None]:
        ends = (yield from self._read_one("/")) is not None
        name = yield from self._read_name()
        return "" if ends and name else name

    def _read_name(self) -> Reading[str | None]:
        """Read the name in a tag, and the tag's end."""
        name = yield from self._read_run(self._tags.keys, MAX_NAME)
        if not name or name.startswith("/") or not (yield from self._read_one(self._tags.key[1])):
            return None
        return name


def _is_list(types: Types, first: str) -> bool:
    """Whether elements, of which ``first`` is the first one's name, are a list."""
    return first == ITEM if (types & CONTAINERS) in (CONTAINERS, frozenset()) else JsonType.ARRAY in types


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return TOKEN in template and "<invoke name=" in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    rules = marked(marker(TAGS.begin[0]), required=required, single=True)
    more = "" if single else f" ({_LINE} one)*"
    rules += [f"call: {_LINE} one{more} {_LINE} {marker(TAGS.end[0])}", *free_elements(TOKEN, marker)]
    calls = []
    for index, tool in enumerate(tools):
        calls.append(f"{marker(TAGS.name[0])} {literal(tool.name + TAGS.name[1])} arguments_{index}")
        if tool.strict:
            rules += ElementValues(tool, index, TOKEN, marker, "minimax_m3").rules()
        else:
            rules += free_arguments(tool, index, TOKEN, marker)
    return "\n".join([*rules, f"one: ({' | '.join(calls)}) {marker(TAGS.call_end)}"])


TOOL_FORMAT = ToolFormat(
    partial(MinimaxM3Parser, tags=TAGS), MARKERS, is_in, grammar, writes_text=True, nests_text=True
)
