"""Calls as Command R7B and Command A write them: a numbered list between two tokens."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_list_calls import JsonForm, JsonListParser, json_list_grammar

FORM = JsonForm("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters", id_key="tool_call_id")


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "<|START_ACTION|>" in template


TOOL_FORMAT = ToolFormat(partial(JsonListParser, form=FORM), FORM.markers, is_in, partial(json_list_grammar, FORM))
