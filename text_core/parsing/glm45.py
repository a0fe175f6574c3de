"""Calls as GLM 4.5 and later models write them: ``<tool_call>f``, then keys and values in tags of their own.

Each argument is ``<arg_key>a</arg_key>`` and ``<arg_value>…</arg_value>``, with line breaks between tags or not.
"""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, tagged_grammar

MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
TAGS = Tags(
    begin=("<tool_call>",),
    end=("</tool_call>",),
    name=("", ""),
    call_end="",
    key=("<arg_key>", "</arg_key>"),
    value=(("<arg_value>", None),),
    value_end="</arg_value>",
    markers=MARKERS,
    may_garble_keys=True,
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "<tool_call>" in template and "<arg_key>" in template


TOOL_FORMAT = ToolFormat(
    partial(TaggedCallParser, tags=TAGS),
    MARKERS,
    is_in,
    partial(tagged_grammar, TAGS, format_name="glm45"),
    writes_text=True,
)
