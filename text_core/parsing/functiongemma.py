"""Calls as FunctionGemma writes them: Gemma 4's, with other tokens."""

from __future__ import annotations

from functools import partial

from text_core.parsing.format import ToolFormat
from text_core.parsing.gemma4 import GemmaForm, GemmaParser, gemma_grammar

FORM = GemmaForm("<start_function_call>", "<end_function_call>", "<escape>")
TOOL_FORMAT = ToolFormat(
    partial(GemmaParser, form=FORM),
    FORM.markers,
    FORM.is_in,
    partial(gemma_grammar, FORM, format_name="functiongemma"),
)
