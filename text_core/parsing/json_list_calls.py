"""Calls that are JSON objects between markers, one or a list: the parser of all such formats, and their grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from text_core.grammar.lark import literal
from text_core.parsing.json_calls import SPACE, JsonCallParser
from text_core.parsing.marks import mark
from text_core.parsing.parts import KnownTools, PartWriter
from text_core.parsing.text_parser import Reading, search_for_texts
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, json_text, marked


@dataclass(frozen=True, slots=True)
class JsonForm:
    """How a format writes calls."""

    begin: str
    end: str
    """Empty: nothing ends them."""
    name_key: str = "name"
    """The key of a tool's name; empty: the name is itself the key of the arguments."""
    arguments_key: str = "arguments"
    other_key: str = ""
    """Another key of the arguments, which some models write; empty: none."""
    may_stand_alone: bool = False
    """Whether a single call may be without a list."""
    is_list: bool = True
    """Whether several calls are a list; otherwise there is one, or they stand in lines."""
    in_lines: bool = False
    """Without ``is_list``: whether there may be several between the same markers."""
    repeats: bool = False
    """Without ``is_list``: whether there may be several with markers of their own."""
    id_key: str = ""
    """The key of a call's number, which comes first; empty: none."""

    tokens: tuple[str, ...] = ()
    """The special tokens of ``begin``; empty: it is one itself."""

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(marker for marker in (*(self.tokens or (self.begin,)), self.end) if marker)


class JsonListParser(JsonCallParser):
    """Content, and calls between markers."""

    def __init__(self, writer: PartWriter, tools: KnownTools, form: JsonForm) -> None:
        self._form = form
        super().__init__(writer, tools)

    def _read(self) -> Reading[None]:
        begin = self._form.begin
        search = search_for_texts([begin, "".join(map(mark, self._form.tokens or (begin,)))])
        while (yield from self._read_until(search, self._send_content)) is not None:
            yield from self._read_run(SPACE)
            if not (yield from self._read_calls()):
                self._release()
                continue
            yield from self._read_run(SPACE)
            if self._form.end:
                yield from self._read_closing(self._form.end)
                yield from self._read_run(SPACE)
            self._drop()

    def _read_calls(self) -> Reading[bool]:
        """Read a list of calls, or one call."""
        if self._form.in_lines or (yield from self._read_one("[")) is None:
            is_read = yield from self._read_one_call()
            while is_read and self._form.in_lines:
                yield from self._read_run(SPACE)
                if (yield from self._peek()) != "{":
                    break
                is_read = yield from self._read_one_call()
            return is_read
        separator: str | None = ","
        while separator == ",":
            yield from self._read_run(SPACE)
            if not (yield from self._read_one_call()):
                return False
            yield from self._read_run(SPACE)
            separator = yield from self._read_one(",", "]")
        return True

    def _read_one_call(self) -> Reading[bool]:
        if self._form.name_key:
            return (yield from self._read_call(name_key=self._form.name_key))
        return (yield from self._read_named_arguments())


def json_list_grammar(
    form: JsonForm, tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker
) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    rules = marked(marker(form.begin), required=required, single=single or not form.repeats)
    more = "" if single else r' ("," SPACE object)*'
    end = f" {marker(form.end)}" if form.end else ""
    calls_rule = f'"[" SPACE object{more} SPACE "]"' if form.is_list else "object"
    if form.in_lines and not single:
        calls_rule = r'object ("\n" object)*'
    if form.may_stand_alone:
        calls_rule += " | object"
    calls = [f"{_beginning(form, tool)} arguments_{index}" for index, tool in enumerate(tools)]
    number = literal("{")
    if form.id_key:
        number = " ".join([literal('{"' + form.id_key + '": "'), "/[0-9]{1,3}/", literal('", ')])
    return "\n".join(
        [
            *rules,
            f"call: SPACE ({calls_rule}) SPACE{end}",
            f"object: {number} ({' | '.join(calls)}) {literal('}')}",
            r"SPACE: /[ \n]{0,16}/",
            *argument_rules(tools),
        ]
    )


def _beginning(form: JsonForm, tool: ToolSpec) -> str:
    """What precedes the arguments of a call."""
    name = json_text(tool.name)
    if not form.name_key:
        return literal(f"{name}: ")
    keys = [key for key in (form.arguments_key, form.other_key) if key]
    beginnings = [literal(f'"{form.name_key}": {name}, "{key}": ') for key in keys]
    return f"({' | '.join(beginnings)})"
