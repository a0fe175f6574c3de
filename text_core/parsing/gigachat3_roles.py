"""A call as GigaChat 3 10B writes it: one JSON object in a message of the role ``function call``.

The tokens between roles and messages include the line breaks behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_calls import JsonCallParser
from text_core.parsing.json_list_calls import JsonForm, json_list_grammar
from text_core.parsing.marks import mark
from text_core.parsing.text_parser import Reading, search_for_texts
from text_core.parsing.tool_grammar import Marker, ToolSpec

_END_MESSAGE, _END_ROLE = MARKERS = ("<|message_sep|>\n\n", "<|role_sep|>\n")
_ROLE = "function call"
_BEGIN = f"{_END_MESSAGE}{_ROLE}{_END_ROLE}"
_SEARCH = search_for_texts(
    [
        f"{mark(_END_MESSAGE)}{_ROLE}{mark(_END_ROLE)}",
        f"{_ROLE}{mark(_END_ROLE)}",
        _BEGIN,
        f"{_ROLE}{_END_ROLE}",
    ]
)


class GigaChat3RolesParser(JsonCallParser):
    """Content, and messages with calls."""

    def _read(self) -> Reading[None]:
        yield from self._read_sections(_SEARCH, self._read_call, _END_MESSAGE)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return f"{_ROLE}{_END_ROLE}" in template


def grammar(tools: Sequence[ToolSpec], *, required: bool, single: bool, marker: Marker) -> str:
    """The grammar of an answer, which has at most one call; see ``format.MakeGrammar``."""
    return json_list_grammar(
        JsonForm(_BEGIN, "", is_list=False), tools, required=required, single=single, marker=marker
    )


TOOL_FORMAT = ToolFormat(GigaChat3RolesParser, MARKERS, is_in, grammar)
