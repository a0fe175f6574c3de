"""The grammar of a whole answer: its form or its tool calls, after optional reasoning.

Processors build it to check a request, engines to run it: from the same data, so with the same rules and limits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from text_core.grammar.constraints import Constraint, ConstraintError
from text_core.grammar.grammar_text import Marker, after_reasoning, grammar_of, with_parts
from text_core.parsing import formats
from text_core.parsing.formats import NONE
from text_core.parsing.tool_grammar import ToolSpec


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Tool calls: at least one if ``required``, at most one if ``single``."""

    tools: tuple[ToolSpec, ...]
    required: bool = False
    single: bool = False
    form: Constraint | None = None
    """Constraint on an answer without calls; None: free text, which may also accompany calls."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The inputs of an answer's grammar."""

    constraint: Constraint | ToolCalls
    after_reasoning: bool = False
    """Whether the constraint begins where reasoning ends."""
    reasoning: str = NONE
    """Format of the reasoning."""
    begins_in_reasoning: bool = False
    tool_calls: str = NONE
    """Format of calls."""


def answer_grammar(form: AnswerForm, marker: Marker) -> str:
    """The grammar in llguidance's notation; ``marker`` is ``GrammarChecker.marker`` or similar.

    Raises ``ConstraintError``, with a field such as ``json_schema`` or ``tool_calls.tools[3].parameters_json``.
    """
    if form.after_reasoning and form.reasoning not in formats.REASONING_FORMATS:
        raise ConstraintError("after_reasoning", "set, but no format of reasoning is known: expected one, or false")
    if isinstance(form.constraint, ToolCalls):
        parts = _parts_of_calls(form, form.constraint, marker)
        calls = formats.TOOL_FORMATS[form.tool_calls]
        if calls.grammar_has_reasoning:
            if not form.begins_in_reasoning:
                return with_parts("start: @calls", parts)
            return after_reasoning("@calls", parts, None, calls.reasoning_end, True, marker)
    else:
        parts = {"answer": grammar_of(form.constraint, marker)}
    answer = " | ".join(f"@{name}" for name in parts)
    if not form.after_reasoning:
        return with_parts(f"start: {answer}", parts)
    reasoning = formats.REASONING_FORMATS[form.reasoning]
    return after_reasoning(
        f"({answer})",
        parts,
        reasoning.opening,
        reasoning.closing,
        form.begins_in_reasoning,
        marker,
        reasoning.answer_begin,
    )


def _parts_of_calls(form: AnswerForm, calls: ToolCalls, marker: Marker) -> dict[str, str]:
    """Grammars by name: ``calls`` and, for the form of answers without calls, ``form``, which ``calls`` may use."""
    if (known := formats.TOOL_FORMATS.get(form.tool_calls)) is None:
        names = ", ".join(sorted(formats.TOOL_FORMATS))
        problem = (
            "calls can be held to a form only in a known format, and the model's chat template writes none: expected "
            "tool_call_parser (by gRPC, output.parse.tool_calls; for all requests, --tool-call-parser of the engine), "
            f"one of {names}"
        )
        raise ConstraintError("tool_calls", problem)
    has_form = calls.form is not None and not calls.required  # required calls leave no room for text
    if has_form and known.begins_like_json and getattr(calls.form, "any_whitespace", False):
        problem = f"set beside tools, whose calls in the format {form.tool_calls} are JSON without it: expected false"
        raise ConstraintError("tool_calls.form.any_whitespace", problem)
    tools = tuple(replace(tool, strict=True) for tool in calls.tools) if calls.required else calls.tools
    make = known.grammar_beside_form if has_form and known.grammar_beside_form else known.grammar
    try:
        parts = {"calls": make(tools, required=calls.required or has_form, single=calls.single, marker=marker)}
    except ConstraintError as error:
        raise ConstraintError(f"tool_calls.{error.field}" if error.field else "tool_calls", error.problem) from None
    except RecursionError:
        raise ConstraintError("tool_calls", "parameters of a tool nest too deep: simplify them") from None
    if calls.form is not None:
        try:
            text = grammar_of(calls.form, marker)
        except ConstraintError as error:
            raise ConstraintError(f"tool_calls.form.{error.field}".rstrip("."), error.problem) from None
        if has_form:
            parts["form"] = text
    return parts
