"""What every part of a model is: something with weights, which knows its tensors in a checkpoint and loads them.

Names and roles of parts are vLLM's. A part has no weights until ``load``; ``part_factory.PartFactory`` makes parts and
remembers the order in which they load.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from engine_core.weights.source import Weights


@dataclass(frozen=True, slots=True)
class StepWeights:
    """Weights as a step meets them: whole, or as experts of which each row chooses some."""

    count: int
    nbytes: float
    """Bytes as they are stored, without padding."""
    num_experts: int = 1
    top_k: int = 1
    """Experts of a row."""

    @property
    def per_row(self) -> float:
        """Weights that a row meets."""
        return self.count * self.top_k / self.num_experts

    def bytes_read(self, rows: float) -> float:
        """Bytes of what ``rows`` rows meet between them, on average, if rows choose evenly and by themselves."""
        return self.nbytes * (1 - math.pow(1 - self.top_k / self.num_experts, rows))


class Part(ABC):
    """A piece of a model with weights of its own."""

    outputs_per_row: int = 0
    """Numbers that it makes of a row, if it makes others than a layer is given."""

    @abstractmethod
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the checkpoint that it takes."""

    @abstractmethod
    def load(self, weights: Weights) -> None:
        """Take its tensors from ``weights``, and have the backend make the op that computes it."""

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes its weights will take, without padding; ``itemsize`` is that of the model's type."""
        return self.num_weights * itemsize

    def step_weights(self, itemsize: int) -> tuple[StepWeights, ...]:
        """Its weights as a step meets them; ``itemsize`` is that of the model's type."""
        return (StepWeights(self.num_weights, self.weight_bytes(itemsize)),)

    @property
    def num_weights(self) -> int:
        """Numbers that its tensors stand for."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes its weights take once they are loaded, packed and padded."""
