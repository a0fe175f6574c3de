"""Resolves the most tokens of reasoning: to the ids of the markers around it, which the engine counts between."""

from __future__ import annotations

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2, part_pb2

from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import REASONING_BUDGET
from text_core.parsing.format import ReasoningFormat
from text_core.parsing.formats import NONE, REASONING_FORMATS, TOOL_FORMATS
from text_core.tokenizer import Tokenizer

_FIELD = "stopping.max_reasoning_tokens"
_MOST_BLANK = 1024
"""The most tokens of white space that an engine takes."""


def resolve_budget(
    request: inference_pb2.GenerateRequest,
    served_model: ServedModel,
    parse: part_pb2.ParseParams | None,
    constraint: constraint_pb2.Constraint | None,
) -> engine_pb2.ReasoningBudget | None:
    """The budget; None if the request has none. Raises ``Refused`` where the engine could not keep it."""
    if not request.stopping.HasField("max_reasoning_tokens"):
        return None
    if REASONING_BUDGET not in served_model.capabilities:
        problem = f"{_FIELD}: this model's engine cannot limit reasoning (it lacks the capability {REASONING_BUDGET})"
        raise Refused(Code.FAILED_PRECONDITION, problem, reason=Reason.CAPABILITY_MISSING, field=_FIELD)
    if parse is None:
        problem = "set, but the answer is not divided: expected a chat (by gRPC, output.parse, too), or no limit"
        raise refuse(_FIELD, problem)
    if parse.reasoning == NONE:
        return None  # a model that does not reason keeps any limit
    form, tokenizer = REASONING_FORMATS[parse.reasoning], served_model.tokenizer
    closing = tokenizer.encode(_closing(form, parse, constraint), add_special_tokens=False)
    opening = tokenizer.encode(form.opening, add_special_tokens=False)
    for text, ids in ((form.opening, opening), (form.closing, closing)):
        if ids is opening and parse.begins_in_reasoning:
            continue
        if not _is_marker(tokenizer, ids):
            problem = f"set, but this model writes {text} in tokens that also stand for other text: expected no limit"
            raise refuse(_FIELD, problem)
    begins_anywhere = _begins_anywhere(form, tokenizer, opening)
    return engine_pb2.ReasoningBudget(
        max_tokens=min(request.stopping.max_reasoning_tokens, served_model.limits.max_model_len),
        closing=closing,
        opening=opening if _is_marker(tokenizer, opening) else (),
        again=opening if begins_anywhere else (),
        blank=() if begins_anywhere and not parse.begins_in_reasoning else _blank(served_model),
        begun=parse.begins_in_reasoning,
    )


def _closing(form: ReasoningFormat, parse: part_pb2.ParseParams, constraint: constraint_pb2.Constraint | None) -> str:
    """What is forced: the marker that ends reasoning, and leaves room for what may follow it, such as a call.

    Raises ``Refused`` if the answer's form leaves no room for it.
    """
    calls = TOOL_FORMATS.get(parse.tool_calls)
    if calls is not None and not (calls.grammar_has_reasoning and form.begins_with_header):
        calls = None  # they come behind the reasoning
    if constraint is not None and parse.begins_in_reasoning:
        includes_messages = calls is not None and constraint.HasField("tool_calls")
        if not (constraint.after_reasoning or includes_messages):
            problem = "set, but the form of the answer includes its reasoning (constraint.after_reasoning is false)"
            raise refuse(_FIELD, f"{problem}: expected true, or no limit")
    if calls is None:
        return form.closing
    is_required = constraint is not None and constraint.tool_calls.required
    return calls.forced_end_before_calls if is_required else calls.forced_end


def _begins_anywhere(form: ReasoningFormat, tokenizer: Tokenizer, opening: list[int]) -> bool:
    """Whether an answer may begin to reason again: as its parser has it, in messages and by special tokens."""
    return _is_marker(tokenizer, opening) and (form.begins_with_header or opening[0] in tokenizer.special_token_ids)


def _blank(served_model: ServedModel) -> list[int]:
    return [i for i in served_model.tokenizer.white_space_ids if i < served_model.limits.vocab_size][:_MOST_BLANK]


def _is_marker(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether the first of ``ids`` is a token of its own, which no other text contains."""
    return bool(ids) and ids[0] in tokenizer.added_tokens().values()
