"""Calls as Qwen3-Coder and Qwen3.5 write them, and Step 3.5 and Nemotron 3: tags that name what they begin.

Within ``<tool_call>``, ``<function=f>`` holds ``<parameter=a>`` for each argument, its value in lines of its own.
"""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, tagged_grammar

MARKERS = ("<tool_call>", "</tool_call>")
TAGS = Tags(
    begin=("<tool_call>",),
    end=("</tool_call>",),
    name=("<function=", ">"),
    call_end="</function>",
    key=("<parameter=", ">"),
    value=(),
    value_end="</parameter>",
    markers=MARKERS,
    may_lack_begin=True,
    may_lack_value_end=True,
    python=True,
    in_lines=True,
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "<tool_call>" in template and "<function=" in template and "<parameter=" in template


TOOL_FORMAT = ToolFormat(
    partial(TaggedCallParser, tags=TAGS),
    MARKERS,
    is_in,
    partial(tagged_grammar, TAGS, format_name="qwen3_coder"),
    uses_names=True,
    uses_argument_names=True,
    writes_text=True,
)
