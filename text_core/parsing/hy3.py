"""Calls as Hunyuan 3 writes them: GLM's keys and values in tags, all calls in one element, each tag with a suffix."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.tagged_calls import TaggedCallParser, Tags, tagged_grammar

_ALL, _CALL, _KEY, _VALUE = (f"<{name}:opensource>" for name in ("tool_calls", "tool_call", "arg_key", "arg_value"))
_END_ALL, _END, _END_KEY, _END_VALUE = (each.replace("<", "</") for each in (_ALL, _CALL, _KEY, _VALUE))
_SEPARATOR = "<tool_sep:opensource>"
MARKERS = (_ALL, _END_ALL, _CALL, _SEPARATOR, _END, _KEY, _END_KEY, _VALUE, _END_VALUE)
TAGS = Tags(
    begin=(_ALL,),
    end=(_END_ALL,),
    name=(_CALL, _SEPARATOR),
    call_end=_END,
    key=(_KEY, _END_KEY),
    value=((_VALUE, None),),
    value_end=_END_VALUE,
    markers=MARKERS,
    may_garble_keys=True,
    several=True,
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _CALL in template and _SEPARATOR in template


TOOL_FORMAT = ToolFormat(
    partial(TaggedCallParser, tags=TAGS),
    MARKERS,
    is_in,
    partial(tagged_grammar, TAGS, format_name="hy3"),
    writes_text=True,
)
