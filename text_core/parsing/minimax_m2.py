"""Calls as MiniMax-M2 writes them: elements ``invoke`` and ``parameter`` with names, all calls in one element."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, tagged_grammar

MARKERS = ("<minimax:tool_call>", "</minimax:tool_call>")
TAGS = Tags(
    begin=("<minimax:tool_call>",),
    end=("</minimax:tool_call>",),
    name=('<invoke name="', '">'),
    call_end="</invoke>",
    key=('<parameter name="', '">'),
    value=(),
    value_end="</parameter>",
    markers=MARKERS,
    may_lack_begin=True,
    several=True,
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "<minimax:tool_call>" in template and "<invoke name=" in template


TOOL_FORMAT = ToolFormat(
    partial(TaggedCallParser, tags=TAGS),
    MARKERS,
    is_in,
    partial(tagged_grammar, TAGS, format_name="minimax_m2"),
    uses_names=True,
    writes_text=True,
)
