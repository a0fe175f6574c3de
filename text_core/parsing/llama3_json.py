"""Calls as Llama 3 writes them: ``{"name": "f", "parameters": {…}}``, several with ``;`` between them.

At the start of an answer, this is a call if a tool has that name; after ``<|python_tag|>`` it is a call anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import SPACE, JsonCallParser
from text_core.parsing.text_parser import MAX_SPACE, Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, json_calls, unmarked

MARKERS = ("<|python_tag|>",)
_SEARCH = search_for(*MARKERS)


class Llama3JsonParser(JsonCallParser):
    """Calls at the beginning or after a marker, and content."""

    def _read(self) -> Reading[None]:
        yield from self._read_run(SPACE, MAX_SPACE)
        allowed: Set[str] | None = self._tool_names
        if (yield from self._read_marker(MARKERS[0])):
            allowed = None
        while True:
            yield from self._read_calls(allowed)
            if (yield from self._read_until(_SEARCH, self._send_content)) is None:
                return
            allowed = None

    def _read_calls(self, allowed: Set[str] | None) -> Reading[None]:
        while True:
            yield from self._read_run(SPACE)
            if not (yield from self._read_call(allowed)):
                self._release()
                return
            yield from self._read_run(SPACE)
            self._drop()
            if not (yield from self._read_one(";", ",")) and (yield from self._peek()) != "{":
                return  # templates of Llama 4 put nothing between calls


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return MARKERS[0] in template or re.search(r'"name": ?"[^\n]{0,99}"parameters": ', template) is not None


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    calls = "calls: object" if single else 'calls: object ("; "? object)*'
    rules = unmarked(r'\s*\{\s*"name"', marker(MARKERS[0]), required=required)
    return "\n".join([*rules, calls, *json_calls(tools, required, "parameters")])


TOOL_FORMAT = ToolFormat(Llama3JsonParser, MARKERS, is_in, grammar, begins_like_json=True, needs_names=True)
