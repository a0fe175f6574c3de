"""What a model is for, in words for people, and the refusal of a call that asks for something else."""

from __future__ import annotations

from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import pooling_pb2

from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused

_EMBEDS = (pooling_pb2.POOLING_TASK_EMBED, pooling_pb2.POOLING_TASK_TOKEN_EMBED)


def purpose(model: engine_pb2.GetModelResponse) -> str:
    """What a model does and the calls for it, such as "makes vectors (Embed, Score)"."""
    if not model.HasField("pooling"):
        return "generates text (Generate, Session)"
    facts, does = model.pooling, []
    if any(task in _EMBEDS for task in facts.tasks):
        does.append("makes vectors (Embed, Score)" if not facts.pair_form else "makes vectors (Embed)")
    if facts.pair_form:
        does.append("scores pairs (Score)")
    elif any(task not in _EMBEDS for task in facts.tasks):
        does.append("makes labels (Classify)")
    return " and ".join(does)


def wrong_model(served_model: ServedModel, not_for: str) -> Refused:
    """The refusal of a call that asks a model for what it is not for, such as "generates no text"."""
    name, does = served_model.limits.name, purpose(served_model.model)
    message = f"model: {name!r} {does}, and {not_for}: call it for what it is for, or name another model"
    return Refused(Code.FAILED_PRECONDITION, message, reason=Reason.UNSUPPORTED, field="model")


def check_generates(served_model: ServedModel) -> None:
    """Raise ``Refused`` for a model that generates no tokens."""
    if served_model.pools:
        raise wrong_model(served_model, "generates no text")
