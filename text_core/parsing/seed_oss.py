"""Calls as Seed-OSS writes them: Qwen3-Coder's tags, but for a prefix, and values without lines of their own."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, tagged_grammar

MARKERS = ("<seed:tool_call>", "</seed:tool_call>")
TAGS = Tags(
    begin=("<seed:tool_call>",),
    end=("</seed:tool_call>",),
    name=("<function=", ">"),
    call_end="</function>",
    key=("<parameter=", ">"),
    value=(),
    value_end="</parameter>",
    markers=MARKERS,
    may_lack_begin=True,
    may_lack_value_end=True,
    python=True,
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "<seed:tool_call>" in template and "<parameter=" in template


TOOL_FORMAT = ToolFormat(
    partial(TaggedCallParser, tags=TAGS),
    MARKERS,
    is_in,
    partial(tagged_grammar, TAGS, format_name="seed_oss"),
    uses_names=True,
    uses_argument_names=True,
    writes_text=True,
)
