"""Calls as DeepSeek V3.2 and V4 write them, in a markup language of their own: each value says whether it is text.

Each tag begins with the token ``｜DSML｜``: ``function_calls`` around all calls (V4: ``tool_calls``), ``invoke``
with a name, and ``parameter`` with a name and whether it is text.
"""

from __future__ import annotations

from functools import partial

from text_core.parsing.argument_types import ALL, TEXT
from text_core.parsing.format import ToolFormat
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, tagged_grammar

_TOKEN = "｜DSML｜"
MARKERS = (_TOKEN,)
TAGS = Tags(
    begin=(f"<{_TOKEN}function_calls>", f"<{_TOKEN}tool_calls>"),
    end=(f"</{_TOKEN}function_calls>", f"</{_TOKEN}tool_calls>"),
    name=(f'<{_TOKEN}invoke name="', '">'),
    call_end=f"</{_TOKEN}invoke>",
    key=(f'<{_TOKEN}parameter name="', '" string="'),
    value=(('true">', TEXT), ('false">', ALL - TEXT)),
    value_end=f"</{_TOKEN}parameter>",
    markers=MARKERS,
    may_lack_begin=True,
    several=True,
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "DSML" in template and "invoke name=" in template


TOOL_FORMAT = ToolFormat(
    partial(TaggedCallParser, tags=TAGS),
    MARKERS,
    is_in,
    partial(tagged_grammar, TAGS, format_name="deepseek_v32"),
    uses_names=True,
)
