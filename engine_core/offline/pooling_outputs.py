"""The results of ``LLM.embed`` and its siblings, with vLLM's names."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import torch

from engine_core.pooling.params import Pooled


@dataclass(frozen=True, slots=True, repr=False)
class PoolingOutput:
    """What was computed of a prompt."""

    values: array[float]
    """32-bit floats, row by row."""
    rows: int | None
    """Of results for each token; None: there is one row, of the whole prompt."""

    @classmethod
    def of(cls, pooled: Pooled, *, per_token: bool) -> Self:
        """From what the engine computed."""
        values = array("f", pooled.values)
        if sys.byteorder == "big":
            values.byteswap()
        return cls(values, pooled.rows if per_token else None)

    def __repr__(self) -> str:
        return f"PoolingOutput(data={self.data})"

    @property
    def data(self) -> torch.Tensor:
        """[numbers], or [tokens, numbers]; float32, in this object's memory."""
        tensor = torch.frombuffer(self.values, dtype=torch.float32)
        return tensor if self.rows is None else tensor.reshape(self.rows, -1)


@dataclass(frozen=True, slots=True, repr=False)
class EmbeddingOutput(PoolingOutput):
    """A prompt's vector."""

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"

    @property
    def embedding(self) -> list[float]:
        """The vector."""
        return self.values.tolist()

    @property
    def hidden_size(self) -> int:
        """Numbers of the vector."""
        return len(self.values)


@dataclass(frozen=True, slots=True, repr=False)
class ClassificationOutput(PoolingOutput):
    """The numbers of a prompt's labels."""

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"

    @property
    def probs(self) -> list[float]:
        """One for each label: probabilities, if the head has an activation and ``use_activation`` is not False."""
        return self.values.tolist()

    @property
    def num_classes(self) -> int:
        """Number of labels."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How well two texts match."""

    score: float
    """The higher, the better."""


_Output = TypeVar("_Output", bound="PoolingOutput | ScoringOutput", covariant=True)


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput(Generic[_Output]):
    """A prompt, or pair, with its result. Equal if what was computed is."""

    outputs: _Output
    prompt_token_ids: list[int]
    """Of a pair whose vectors are compared: those of both."""
    num_cached_tokens: int = field(default=0, compare=False)
    """Prompt tokens found in the prefix cache."""
    request_id: str = field(default="", compare=False)

    @property
    def finished(self) -> bool:
        """True: results come whole."""
        return True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """``outputs.embedding`` is the vector."""

    __slots__ = ()


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """``outputs.probs`` are the labels' probabilities."""

    __slots__ = ()


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """``outputs.score`` says how well the two match."""

    __slots__ = ()
