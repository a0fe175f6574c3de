"""Resolves the most tokens of reasoning: to the ids of the markers around it, which the engine counts between."""

from __future__ import annotations

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import part_pb2

from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import REASONING_BUDGET
from text_core.parsing.formats import NONE, REASONING_FORMATS
from text_core.tokenizer import Tokenizer

_FIELD = "stopping.max_reasoning_tokens"


def resolve_budget(
    request: inference_pb2.GenerateRequest, served_model: ServedModel, parse: part_pb2.ParseParams | None
) -> engine_pb2.ReasoningBudget | None:
    """The budget; None if the request has none. Raises ``Refused`` where the engine could not keep it."""
    if not request.stopping.HasField("max_reasoning_tokens"):
        return None
    if REASONING_BUDGET not in served_model.capabilities:
        problem = f"{_FIELD}: this model's engine cannot limit reasoning (it lacks the capability {REASONING_BUDGET})"
        raise Refused(Code.FAILED_PRECONDITION, problem, reason=Reason.CAPABILITY_MISSING, field=_FIELD)
    if parse is None:
        raise refuse(_FIELD, "set, but the answer is not divided: expected output.parse, too, or no limit")
    if parse.reasoning == NONE:
        return None  # a model that does not reason keeps any limit
    form = REASONING_FORMATS[parse.reasoning]
    closing = served_model.tokenizer.encode(form.closing, add_special_tokens=False)
    opening = served_model.tokenizer.encode(form.opening, add_special_tokens=False)
    for text, ids in ((form.opening, opening), (form.closing, closing)):
        if not _is_marker(served_model.tokenizer, ids):
            problem = f"set, but this model writes {text} in tokens that also stand for other text: expected no limit"
            raise refuse(_FIELD, problem)
    return engine_pb2.ReasoningBudget(
        max_tokens=request.stopping.max_reasoning_tokens,
        closing=closing,
        opening=() if parse.begins_in_reasoning else opening,
    )


def _is_marker(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether the first of ``ids`` is a token of its own, which no other text contains."""
    return bool(ids) and ids[0] in tokenizer.added_tokens().values()
