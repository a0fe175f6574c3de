"""Calls as Apertus writes them: a list of objects whose only key is the name, between two tokens."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_list_calls import JsonForm, JsonListParser, json_list_grammar

FORM = JsonForm("<|tools_prefix|>", "<|tools_suffix|>", name_key="")


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "<|tools_prefix|>" in template


TOOL_FORMAT = ToolFormat(partial(JsonListParser, form=FORM), FORM.markers, is_in, partial(json_list_grammar, FORM))
