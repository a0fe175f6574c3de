"""Calls as GigaChat 3 writes them: one JSON object behind ``<|function_call|>``."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_list_calls import JsonForm, JsonListParser, json_list_grammar

FORM = JsonForm("<|function_call|>", "", is_list=False)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return FORM.begin in template


TOOL_FORMAT = ToolFormat(partial(JsonListParser, form=FORM), FORM.markers, is_in, partial(json_list_grammar, FORM))
