"""How well a model suits a request that names none: the best one of the models that are served is asked."""

from __future__ import annotations

from collections.abc import Callable

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import pooling_pb2

Suits = Callable[[engine_pb2.GetModelResponse], int]
"""The higher, the better; 0: it is of the other kind, 1: it pools, but cannot do this."""
_VECTORS = (pooling_pb2.POOLING_TASK_EMBED, pooling_pb2.POOLING_TASK_TOKEN_EMBED)
_LABELS = (pooling_pb2.POOLING_TASK_CLASSIFY, pooling_pb2.POOLING_TASK_TOKEN_CLASSIFY)


def generates(model: engine_pb2.GetModelResponse) -> int:
    """For a request that asks for tokens."""
    return int(not model.HasField("pooling"))


def embeds(model: engine_pb2.GetModelResponse) -> int:
    """For one that asks for vectors."""
    return _pools(model) and 1 + any(task in _VECTORS for task in model.pooling.tasks)


def scores(model: engine_pb2.GetModelResponse) -> int:
    """For one that asks for scores of pairs: a reranker before an embedder, whose vectors are compared."""
    facts = model.pooling
    embeds_pairs = pooling_pb2.POOLING_TASK_EMBED in facts.tasks
    return _pools(model) and 1 + (2 if facts.pair_form else int(embeds_pairs))


def classifies(model: engine_pb2.GetModelResponse) -> int:
    """For one that asks for labels: a classifier before a reranker, whose one label is how well a pair matches."""
    facts = model.pooling
    has_labels = any(task in _LABELS for task in facts.tasks)
    return _pools(model) and 1 + (has_labels and (1 if facts.pair_form else 2))


def _pools(model: engine_pb2.GetModelResponse) -> int:
    return int(model.HasField("pooling"))


SUITS: dict[type, Suits] = {
    inference_pb2.EmbedRequest: embeds,
    inference_pb2.ScoreRequest: scores,
    inference_pb2.ClassifyRequest: classifies,
}
"""By the request's message."""
