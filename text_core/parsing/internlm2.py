"""Calls as InternLM 2 and 2.5 write them: ``<|action_start|><|plugin|>``, one JSON object and ``<|action_end|>``."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_list_calls import JsonForm, JsonListParser, json_list_grammar

FORM = JsonForm(
    "<|action_start|><|plugin|>",
    "<|action_end|>",
    arguments_key="parameters",
    other_key="arguments",
    is_list=False,
    repeats=True,
    tokens=("<|action_start|>", "<|plugin|>"),
)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return FORM.begin in template


TOOL_FORMAT = ToolFormat(partial(JsonListParser, form=FORM), FORM.markers, is_in, partial(json_list_grammar, FORM))
