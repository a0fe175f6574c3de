"""Calls as Firefunction v2 writes them, and Phi-4-mini with vLLM's template: a list behind ``functools``."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_list_calls import JsonForm, JsonListParser, json_list_grammar

FORM = JsonForm("functools", "")


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "functools[{" in template


TOOL_FORMAT = ToolFormat(partial(JsonListParser, form=FORM), (), is_in, partial(json_list_grammar, FORM))
