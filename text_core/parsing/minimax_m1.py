"""Calls as MiniMax-M1 writes them: JSON objects in lines between ``<tool_calls>`` and ``</tool_calls>``."""

from __future__ import annotations

import re
from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.json_list_calls import JsonForm, JsonListParser, json_list_grammar

FORM = JsonForm("<tool_calls>", "</tool_calls>", is_list=False, in_lines=True)
_SHOWN = re.compile(r"<tool_calls>(?:\s|\\n)*\{")
"""The beginning of a call, in a template with escaped line breaks."""


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return _SHOWN.search(template) is not None


TOOL_FORMAT = ToolFormat(partial(JsonListParser, form=FORM), FORM.markers, is_in, partial(json_list_grammar, FORM))
