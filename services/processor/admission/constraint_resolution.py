"""Resolves the form that an answer must have, the client's constraint or tool calls, and checks its grammar.

The grammar depends only on what ``Admitted`` returns (constraint and ``output.parse``): a resume gets the same one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2, part_pb2

from services.common.rpc.constraint_messages import read_answer_form
from services.processor.admission.parse_resolution import may_reason
from services.processor.admission.tool_resolution import Tools
from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import CONSTRAINT, FORM_BESIDE_TOOLS
from text_core.answer_grammar import answer_grammar
from text_core.grammar.constraints import ConstraintError
from text_core.parsing.formats import NONE, format_capabilities

MAX_BYTES = 1 << 20
"""Limit on a constraint with all tools that may be called; engines refuse larger ones."""
_TOOL_FIELD = re.compile(r"tool_calls\.tools\[(?P<index>\d+)\]\.(?P<rest>.*)")
"""The field of an error about a tool."""
_FORM_FIELD = "tool_calls.form."


def is_constrained(request: inference_pb2.GenerateRequest) -> bool:
    """Quick test whether a request may need a grammar, which takes longer to check than a text to tokenize."""
    chat = request.chat
    return request.HasField("constraint") or chat.HasField("tool_choice") or any(tool.strict for tool in chat.tools)


def resolve_constraint(
    request: inference_pb2.GenerateRequest,
    served_model: ServedModel,
    prompt: Sequence[int],
    parse: part_pb2.ParseParams | None,
    tools: Tools,
) -> constraint_pb2.Constraint | None:
    """The constraint, checked on the model's tokenizer; None if the answer is unconstrained. Raises ``Refused``."""
    admitted, chat = constraint_pb2.Constraint(), None
    given = request.constraint if request.HasField("constraint") else None
    field = "chat.tool_choice" if tools.calls is not None and tools.calls.required else "chat.tools"
    if given is not None and (kind := given.WhichOneof("kind")):
        field = f"constraint.{kind}"
    elif given is not None:
        field = "constraint"
    calls = tools.calls if given is None else _calls_beside_form(given, parse, tools)
    if calls is not None:
        admitted.tool_calls.CopyFrom(calls)
        chat = request.chat
        if given is not None and given.HasField("after_reasoning"):
            admitted.after_reasoning = given.after_reasoning
    elif given is not None:
        admitted.CopyFrom(given)
    else:
        return None
    _check_use(request, served_model, field if given is None else "constraint", engine_needs(admitted, parse))
    has_reasoning = parse is not None and parse.reasoning != NONE
    if not admitted.HasField("after_reasoning"):
        admitted.after_reasoning = may_reason(parse, served_model, prompt)
    if admitted.after_reasoning and not has_reasoning:
        problem = "set, but output.parse.reasoning names no format: expected one, or false"
        raise refuse("constraint.after_reasoning", problem)
    if (size := admitted.ByteSize()) > MAX_BYTES:
        problem = f"has {size} bytes with the parameters of all tools: expected at most {MAX_BYTES}"
        raise refuse("constraint" if chat is None else "chat.tools", problem)
    try:
        form = read_answer_form(admitted, parse or part_pb2.ParseParams())
        served_model.grammars.check(answer_grammar(form, served_model.grammars.checker.marker))
    except ConstraintError as error:
        raise refuse(_place(error, admitted, chat) or field, error.problem) from None
    return admitted


def engine_needs(constraint: constraint_pb2.Constraint | None, parse: part_pb2.ParseParams | None) -> frozenset[str]:
    """Capabilities without which an engine would use another grammar than that of ``constraint`` and ``parse``."""
    if constraint is None:
        return frozenset()
    form = frozenset((CONSTRAINT, FORM_BESIDE_TOOLS) if constraint.tool_calls.HasField("form") else (CONSTRAINT,))
    return form if parse is None else form | format_capabilities(parse.tool_calls, parse.reasoning)


def _calls_beside_form(
    form: constraint_pb2.Constraint, parse: part_pb2.ParseParams | None, tools: Tools
) -> constraint_pb2.ToolCalls | None:
    """The tool calls allowed in place of an answer of that form; None if there are none."""
    has_format = parse is not None and parse.tool_calls != NONE
    allowed = tools.calls or (tools.free_calls if has_format else None)  # others would not be recognized
    if allowed is None:
        return None
    calls = constraint_pb2.ToolCalls()
    calls.CopyFrom(allowed)
    calls.form.CopyFrom(form)
    calls.form.ClearField("after_reasoning")
    return calls


def _place(error: ConstraintError, admitted: constraint_pb2.Constraint, chat: inference_pb2.Chat | None) -> str | None:
    """The request's invalid field; None if it is no single field."""
    if chat is None:
        return f"constraint.{error.field}" if error.field else None
    if error.field.startswith(_FORM_FIELD):
        return f"constraint.{error.field.removeprefix(_FORM_FIELD)}"
    if (found := _TOOL_FIELD.fullmatch(error.field)) is None:
        return None
    name = admitted.tool_calls.tools[int(found["index"])].name
    index = next(index for index, tool in enumerate(chat.tools) if tool.name == name)
    return f"chat.tools[{index}].{found['rest']}"


def _check_use(
    request: inference_pb2.GenerateRequest, served_model: ServedModel, field: str, needs: frozenset[str]
) -> None:
    """Check that the model supports the constraint, and that nothing contradicts it."""
    if missing := sorted(needs - served_model.capabilities):
        problem = f"{field}: this model's engine cannot constrain answers so (it lacks the capability {missing[0]})"
        raise Refused(Code.FAILED_PRECONDITION, problem, reason=Reason.CAPABILITY_MISSING, field=field)
    if request.sampling.allowed_token_ids:
        raise refuse("sampling.allowed_token_ids", f"set together with {field}: expected one of the two")
