"""The message of a request that is pooled, and what its answer is made of."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ringline.inference.v1 import inference_pb2

PoolingMessage = inference_pb2.EmbedRequest | inference_pb2.ScoreRequest | inference_pb2.ClassifyRequest
POOLING_MESSAGES = (inference_pb2.EmbedRequest, inference_pb2.ScoreRequest, inference_pb2.ClassifyRequest)
FLOAT_BYTES = 4


class AnswerForm(enum.Enum):
    """What the results of inputs become."""

    VECTORS = "vectors"
    LABELS = "labels"
    PAIR_SCORES = "pair scores"
    """Each input is a pair, and its result the score."""
    COMPARED = "compared"
    """Inputs are queries, then documents, and their vectors are compared."""

    @property
    def event(self) -> str:
        """The event of a ``GenerateResponse`` that carries it."""
        return {AnswerForm.VECTORS: "embedded", AnswerForm.LABELS: "classified"}.get(self, "scored")


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What a request's answer is made of. Inputs are in order of their choices."""

    form: AnswerForm
    places: Sequence[str]
    """Where each input stands in the request, for errors."""
    input_tokens: array[int]
    width: int
    """Numbers of a row."""
    per_token: bool = False
    """Whether an input has a row for each of its tokens, rather than one."""
    labels: Sequence[str] = ()
    num_queries: int = 0
    """Inputs that are queries, if vectors are compared."""
    similarity: str = ""
    """What compares them, as in ``PoolingFacts``."""

    def rows(self, choice: int) -> int:
        """Rows of an input's result."""
        return self.input_tokens[choice] if self.per_token else 1

    def nbytes(self, choice: int) -> int:
        """Size of an input's result."""
        return FLOAT_BYTES * self.width * self.rows(choice)

    @property
    def result_bytes(self) -> int:
        """Size of all results."""
        rows = sum(self.input_tokens) if self.per_token else len(self.input_tokens)
        return FLOAT_BYTES * self.width * rows


@dataclass(frozen=True, slots=True)
class PooledAnswer:
    """An answer as its client gets it."""

    event: str
    """The event of a ``GenerateResponse``."""
    packed: bytes
    """The event's message, serialized."""
