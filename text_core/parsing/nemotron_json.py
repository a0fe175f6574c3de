"""Calls as Nemotron Nano 2 and Llama-Nemotron 1.5 write them: a list between ``<TOOLCALL>`` and ``</TOOLCALL>``."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_list_calls import JsonForm, JsonListParser, json_list_grammar

FORM = JsonForm("<TOOLCALL>", "</TOOLCALL>")


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return "<TOOLCALL>" in template


TOOL_FORMAT = ToolFormat(partial(JsonListParser, form=FORM), FORM.markers, is_in, partial(json_list_grammar, FORM))
