"""Calls as OLMo 3 writes them: in Python's notation, each in a line, between two tags."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.pythonic import MarkedPythonicParser, PythonicForm, marked_grammar

FORM = PythonicForm("<function_calls>", "</function_calls>", is_list=False)


def is_in(template: str) -> bool:
    """Whether a template writes calls in this format."""
    return FORM.begin in template


TOOL_FORMAT = ToolFormat(partial(MarkedPythonicParser, form=FORM), FORM.markers, is_in, partial(marked_grammar, FORM))
