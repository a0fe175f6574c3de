"""Calls as xLAM 2 writes them: a list without markers, ``[{"name": "f", "arguments": {…}}]``.

At the start of an answer, this is calls if tools have those names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from text_core.grammar.lark import literal
from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser
from text_core.parsing.text_parser import MAX_SPACE, Reading
from text_core.parsing.tool_grammar import Marker, ToolSpec, argument_rules, json_text, unmarked

_NEVER = re.compile("(?P<full>(?!))")
"""Finds nothing: the rest is content."""


class XlamParser(JsonCallParser):
    """Calls at the beginning, and content."""

    def _read(self) -> Reading[None]:
        yield from self._read_run(SPACE, MAX_SPACE)
        if not (yield from self._read_calls()):
            self._release()
        yield from self._read_until(_NEVER, self._send_content)

    def _read_calls(self) -> Reading[bool]:
        if (yield from self._read_one("[")) is None:
            return False
        separator: str | None = ","
        while separator == ",":
            yield from self._read_run(SPACE)
            if not (yield from self._read_call(self._tool_names)):
                return False
            yield from self._read_run(SPACE)
            separator = yield from self._read_one(",", "]")
        if separator is None:
            return False
        yield from self._read_run(SPACE)
        self._drop()
        return True


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return '[{"name": "' in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer, which has no ``marker``; see ``format.MakeGrammar``."""
    first, later, key = map(literal, ('[{"name": ', ', {"name": ', ', "arguments": '))
    calls = [f"{literal(json_text(tool.name))} {key} arguments_{index}" for index, tool in enumerate(tools)]
    more = "" if single else f" ({later} call)*"
    return "\n".join(
        [
            *unmarked(r'\s*\[\s*\{\s*"name"', "", required=required),
            # its beginning is one terminal, because free text that begins with "[" would be taken for the longer one
            f'calls: {first} call{more} "]"',
            f"call: ({' | '.join(calls)}) {literal('}')}",
            *argument_rules(tools),
        ]
    )


TOOL_FORMAT = ToolFormat(XlamParser, (), is_in, grammar, begins_like_json=True, needs_names=True)
