"""Calls as MiniCPM5 writes them: elements ``function`` and ``param``, some texts in CDATA."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, tagged_grammar

MARKERS = ("<function", "</function>", "<param", "</param>", "<![CDATA[", "]]>")
TAGS = Tags(
    begin=('<function name="',),
    end=("</function>",),
    name=("", '">'),
    call_end="",
    key=('<param name="', '">'),
    value=(),
    value_end="</param>",
    markers=MARKERS,
    python=True,
    cdata=True,
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return '<function name="' in template and '<param name="' in template


TOOL_FORMAT = ToolFormat(
    partial(TaggedCallParser, tags=TAGS),
    MARKERS,
    is_in,
    partial(tagged_grammar, TAGS, format_name="minicpm5"),
    writes_text=True,
)
