"""The form that an answer must have: the client's constraint, or calls of tools, as one grammar of the whole answer.

The grammar is a function of what ``Admitted`` returns (constraint and ``output.parse``), so a resume gets the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2, part_pb2

from services.common.rpc.constraint_messages import read_constraint
from services.processor.admission.tool_resolution import Tools
from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import CONSTRAINT
from services.text.grammar.constraints import ConstraintError, JsonSchema
from services.text.grammar.grammar_text import after_reasoning, grammar_of
from services.text.parsing import formats
from services.text.parsing.formats import NONE


@dataclass(frozen=True, slots=True)
class ResolvedConstraint:
    """A constraint for the client, which a resume sends again, and for the engine."""

    admitted: constraint_pb2.Constraint
    grammar: str
    """Of the whole answer, reasoning included."""


def is_constrained(request: inference_pb2.GenerateRequest) -> bool:
    """Whether a request may need a grammar, at a glance: grammars take longer to check than texts to tokenize."""
    chat = request.chat
    return request.HasField("constraint") or chat.HasField("tool_choice") or any(tool.strict for tool in chat.tools)


def resolve_constraint(
    request: inference_pb2.GenerateRequest,
    served_model: ServedModel,
    parse: part_pb2.ParseParams | None,
    tools: Tools,
) -> ResolvedConstraint | None:
    """Make the grammar and check it on the model's tokenizer; None if the answer is free. Raises ``Refused``."""
    field = "constraint" if request.HasField("constraint") else "chat.tool_choice" if tools.required else "chat.tools"
    if not request.HasField("constraint") and not tools.constrains:
        return None
    if request.HasField("constraint") and tools.constrains:
        problem = "set together with tools that must be called or are strict: expected one of the two"
        raise refuse("constraint", problem)
    if CONSTRAINT not in served_model.capabilities:
        problem = f"{field}: this model's engine cannot constrain answers (it lacks the capability {CONSTRAINT})"
        raise Refused(Code.FAILED_PRECONDITION, problem, reason=Reason.CAPABILITY_MISSING, field=field)
    if request.sampling.allowed_token_ids:
        raise refuse("sampling.allowed_token_ids", f"set together with {field}: expected one of the two")
    admitted = constraint_pb2.Constraint()
    if request.HasField("constraint"):
        admitted.CopyFrom(request.constraint)
    else:
        admitted.grammar = _tools_grammar(served_model, parse, tools, field)
    has_reasoning = parse is not None and parse.reasoning != NONE
    if not admitted.HasField("after_reasoning"):
        admitted.after_reasoning = has_reasoning
    if admitted.after_reasoning and not has_reasoning:
        problem = "set, but output.parse.reasoning names no format: expected one, or false"
        raise refuse("constraint.after_reasoning", problem)
    if field == "constraint" and (kind := admitted.WhichOneof("kind")) is not None:
        field = f"constraint.{kind}"
    grammar = _checked(lambda: _whole_grammar(admitted, served_model, parse), field)
    return ResolvedConstraint(admitted, grammar)


def _whole_grammar(
    admitted: constraint_pb2.Constraint, served_model: ServedModel, parse: part_pb2.ParseParams | None
) -> str:
    marker = served_model.grammars.marker
    grammar = grammar_of(read_constraint(admitted), marker)
    if admitted.after_reasoning and parse is not None:
        reasoning = formats.REASONING_FORMATS[parse.reasoning]
        grammar = after_reasoning(grammar, reasoning.opening, reasoning.closing, parse.begins_in_reasoning, marker)
    served_model.grammars.check(grammar)
    return grammar


def _tools_grammar(served_model: ServedModel, parse: part_pb2.ParseParams | None, tools: Tools, field: str) -> str:
    """The grammar of an answer with calls, without the reasoning before it."""
    assert parse is not None  # typed tools always have it
    if parse.tool_calls == NONE:
        known = ", ".join(sorted(formats.TOOL_FORMATS))
        problem = (
            "calls can be held to a form only in a known format, and the model's chat template writes none: expected "
            f"MODE_AUTO or MODE_NONE without strict tools, or output.parse.tool_calls, one of {known}"
        )
        raise refuse(field, problem)
    for spec in tools.specs:
        if tools.required or spec.strict:
            parameters = JsonSchema(json.dumps(spec.parameters))
            index = list(tools.names).index(spec.name)
            _checked(partial(grammar_of, parameters), f"chat.tools[{index}].parameters_json")
    specs = [replace(spec, strict=True) for spec in tools.specs] if tools.required else tools.specs
    tool_format = formats.TOOL_FORMATS[parse.tool_calls]
    marker = served_model.grammars.marker
    return _checked(
        lambda: tool_format.grammar(specs, required=tools.required, single=tools.single, marker=marker), field
    )


def _checked(make: Callable[[], str], field: str) -> str:
    try:
        return make()
    except ConstraintError as error:
        if field.startswith("constraint") and error.field:
            field = f"constraint.{error.field}"
        raise refuse(field, error.problem) from None
