"""Calls as Mistral's models write them.

Older models write a list, ``[TOOL_CALLS] [{"name": "f", "arguments": {…}}]``, newer ones separate calls,
``[TOOL_CALLS]f[ARGS]{…}``. Ids are 9 letters and digits, as templates demand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from text_core.grammar.lark import literal
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser, is_name
from text_core.parsing.parts import call_id
from text_core.parsing.text_parser import MAX_NAME, Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, json_calls, marked

_CALLS, _ARGS, _ID = MARKERS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
_SEARCH = search_for(_CALLS)
_NAME = re.compile(r"[\w.-]+")


class MistralParser(JsonCallParser):
    """Content, and calls after markers."""

    def _read(self) -> Reading[None]:
        while (yield from self._read_until(_SEARCH, self._send_content)) is not None:
            yield from self._read_run(SPACE)
            read = self._read_list if (yield from self._peek()) == "[" else self._read_named
            if not (yield from read()):
                self._release()

    def _read_list(self) -> Reading[bool]:
        yield from self._read_one("[")
        separator: str | None = ","
        while separator == ",":
            yield from self._read_run(SPACE)
            if not (yield from self._read_call()):
                return False
            yield from self._read_run(SPACE)
            separator = yield from self._read_one(",", "]")
        yield from self._read_run(SPACE)
        self._drop()
        return True

    def _read_named(self) -> Reading[bool]:
        name = yield from self._read_run(_NAME, MAX_NAME)
        if (yield from self._read_marker(_ID)):
            yield from self._read_run(_NAME, MAX_NAME)
        may_be_empty = yield from self._read_marker(_ARGS)
        yield from self._read_run(SPACE)
        if not is_name(name) or not (may_be_empty or (yield from self._peek()) == "{"):
            return False
        if not (yield from self._read_arguments_of(name, _CALLS, may_end=True)):
            return False
        yield from self._read_run(SPACE)
        self._drop()
        return True


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _CALLS in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``. Calls may have ids, as templates show them."""
    rules = marked(marker(_CALLS), required=required, single=single)
    args, call_id = marker(_ARGS), marker(_ID)
    if args.startswith("<"):  # only newer models have this token, and some of these the other
        before = f"({call_id} ID)? {args}" if call_id.startswith("<") else args
        calls = [f"{literal(tool.name)} {before} arguments_{index}" for index, tool in enumerate(tools)]
        rules += [f"call: {' | '.join(calls)}", *argument_rules(tools)]
    else:
        rules = marked(marker(_CALLS), required=required, single=True)
        objects = "object" if single else 'object (", " object)*'
        with_id = " ".join([literal(', "id": "'), "ID", literal('"')])
        rules += [f'call: " "? "[" {objects} "]"', *json_calls(tools, required, "arguments", f"({with_id})?")]
    return "\n".join([*rules, "ID: /[A-Za-z0-9]{9}/"])


TOOL_FORMAT = ToolFormat(MistralParser, MARKERS, is_in, grammar, call_id=partial(call_id, prefix="", length=9))
