"""Calls as Hermes and Qwen write them: ``<tool_call>{"name": "f", "arguments": {…}}</tool_call>``.

Line breaks may stand between the markers and the object.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import JsonCallParser
from text_core.parsing.text_parser import Reading, search_for
from text_core.parsing.tool_grammar import Marker, ToolSpec, json_calls, marked

_OPEN, _CLOSE = MARKERS = ("<tool_call>", "</tool_call>")
_SEARCH = search_for(_OPEN)
_FORM = re.compile(r"""<tool_call>[\s\\n'"+-{%}]{0,40}\\?"name\\?"|<tool_call></tool_call>""")
"""The beginning of a call, in a template with escaped line breaks, or the markers as instructions mention them."""


class HermesParser(JsonCallParser):
    """Content, and calls between markers."""

    def _read(self) -> Reading[None]:
        yield from self._read_sections(_SEARCH, self._read_call, _CLOSE)


def is_in(template: str) -> bool:
    """Whether a template writes this format; others use the same marker around other syntax."""
    return _FORM.search(template) is not None


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer; see ``format.MakeGrammar``."""
    line = r'"\n"?'
    rules = marked(marker(_OPEN), required=required, single=single, between=line)
    rules += [f"call: {line} object {line} {marker(_CLOSE)}", *json_calls(tools, required, "arguments")]
    return "\n".join(rules)


TOOL_FORMAT = ToolFormat(HermesParser, MARKERS, is_in, grammar)
