"""Calls as Phi-4-mini writes them: a list, or one call, between ``<|tool_call|>`` and ``<|/tool_call|>``."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_list_calls import JsonForm, JsonListParser, json_list_grammar

FORM = JsonForm("<|tool_call|>", "<|/tool_call|>", may_stand_alone=True)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return ("<|tool_call|>" in template and "<|/tool_call|>" in template) or "<|/tool|>" in template


TOOL_FORMAT = ToolFormat(partial(JsonListParser, form=FORM), FORM.markers, is_in, partial(json_list_grammar, FORM))
