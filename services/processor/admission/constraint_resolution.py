"""The form that an answer must have: the client's constraint, or calls of tools, as one grammar of the whole answer.

The grammar is a function of what ``Admitted`` returns (constraint and ``output.parse``), so a resume gets the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2, part_pb2

from services.common.rpc.constraint_messages import read_constraint
from services.processor.admission.tool_resolution import Tools, callable_tools
from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import CONSTRAINT
from services.text.grammar.constraints import ConstraintError
from services.text.grammar.grammar_text import after_reasoning, grammar_of
from services.text.parsing import formats
from services.text.parsing.formats import NONE

_TOOL_INDEX = re.compile(r"tools\[(\d+)\]")
"""In the field of an error about one tool of a grammar of calls."""


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
    admitted, chat = constraint_pb2.Constraint(), None
    if request.HasField("constraint"):
        admitted.CopyFrom(request.constraint)
        field = f"constraint.{kind}" if (kind := admitted.WhichOneof("kind")) else "constraint"
        if tools.calls is not None:
            problem = "set together with tools that must be called or are strict: expected one of the two"
            raise refuse("constraint", problem)
    elif tools.calls is not None:
        admitted.tool_calls.CopyFrom(tools.calls)
        chat, field = request.chat, "chat.tool_choice" if tools.calls.required else "chat.tools"
    else:
        return None
    _check_use(request, served_model, field.partition(".")[0] if chat is None else field)
    has_reasoning = parse is not None and parse.reasoning != NONE
    if not admitted.HasField("after_reasoning"):
        admitted.after_reasoning = has_reasoning
    if admitted.after_reasoning and not has_reasoning:
        problem = "set, but output.parse.reasoning names no format: expected one, or false"
        raise refuse("constraint.after_reasoning", problem)
    try:
        if admitted.WhichOneof("kind") == "tool_calls":
            grammar = _grammar_of_calls(admitted, chat, served_model, parse, field)
        else:
            grammar = grammar_of(read_constraint(admitted), served_model.grammars.checker.marker)
            grammar = _after_reasoning(grammar, admitted, served_model, parse)
        served_model.grammars.check(grammar)
    except ConstraintError as error:
        raise refuse(f"constraint.{error.field}" if chat is None and error.field else field, error.problem) from None
    return ResolvedConstraint(admitted, grammar)


def _check_use(request: inference_pb2.GenerateRequest, served_model: ServedModel, field: str) -> None:
    """Check that the model can keep to a constraint, and that nothing else contradicts it."""
    if CONSTRAINT not in served_model.capabilities:
        problem = f"{field}: this model's engine cannot constrain answers (it lacks the capability {CONSTRAINT})"
        raise Refused(Code.FAILED_PRECONDITION, problem, reason=Reason.CAPABILITY_MISSING, field=field)
    if request.sampling.allowed_token_ids:
        raise refuse("sampling.allowed_token_ids", f"set together with {field}: expected one of the two")


def _grammar_of_calls(
    admitted: constraint_pb2.Constraint,
    chat: inference_pb2.Chat | None,
    served_model: ServedModel,
    parse: part_pb2.ParseParams | None,
    field: str,
) -> str:
    """The grammar of an answer with calls; ``chat``: which the constraint was made of, None if the client sent it."""
    calls = admitted.tool_calls
    tools = callable_tools(calls, chat)
    if parse is None or parse.tool_calls == NONE:
        known = ", ".join(sorted(formats.TOOL_FORMATS))
        problem = (
            "calls can be held to a form only in a known format, and the model's chat template writes none: expected "
            f"MODE_AUTO or MODE_NONE without strict tools, or output.parse.tool_calls, one of {known}"
        )
        raise refuse(field, problem)
    form = formats.TOOL_FORMATS[parse.tool_calls]
    marker = served_model.grammars.checker.marker
    try:
        grammar = form.grammar(tools.specs, required=calls.required, single=calls.single, marker=marker)
    except ConstraintError as error:
        tool = _TOOL_INDEX.match(error.field)
        raise refuse(f"{tools.fields[int(tool[1])]}.parameters_json" if tool else field, error.problem) from None
    return grammar if form.grammar_has_reasoning else _after_reasoning(grammar, admitted, served_model, parse)


def _after_reasoning(
    grammar: str, admitted: constraint_pb2.Constraint, served_model: ServedModel, parse: part_pb2.ParseParams | None
) -> str:
    if not admitted.after_reasoning or parse is None:
        return grammar
    form = formats.REASONING_FORMATS[parse.reasoning]
    begins_inside = parse.begins_in_reasoning
    return after_reasoning(grammar, form.opening, form.closing, begins_inside, served_model.grammars.checker.marker)
