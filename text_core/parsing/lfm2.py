"""Calls as LFM2 writes them: a list in Python's notation between two tokens."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.pythonic import MarkedPythonicParser, PythonicForm, marked_grammar

FORM = PythonicForm("<|tool_call_start|>", "<|tool_call_end|>")


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return FORM.begin in template or "List of tools: " in template


TOOL_FORMAT = ToolFormat(partial(MarkedPythonicParser, form=FORM), FORM.markers, is_in, partial(marked_grammar, FORM))
