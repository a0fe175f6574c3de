"""The base of a model's parts: a part has weights, knows their tensors in a checkpoint, and loads them.

Names and roles of parts are vLLM's. A part has no weights until ``load``; ``part_factory.PartFactory`` makes parts and
records their loading order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from engine_core.weights.source import Weights


@dataclass(frozen=True, slots=True)
class StepWeights:
    """Weights as a step uses them: whole, or as experts of which each row chooses some."""

    count: int
    nbytes: float
    """Bytes as stored, without padding."""
    num_experts: int = 1
    top_k: int = 1
    """Experts per row."""

    @property
    def per_row(self) -> float:
        """Weights that a row uses."""
        return self.count * self.top_k / self.num_experts

    def bytes_read(self, rows: float) -> float:
        """Expected bytes that ``rows`` rows together read, if they choose experts uniformly and independently."""
        return self.nbytes * (1 - math.pow(1 - self.top_k / self.num_experts, rows))


class Part(ABC):
    """A piece of a model with its own weights."""

    outputs_per_row: int = 0
    """Values that it makes per row; 0 if it makes none beyond those given to a layer."""

    @abstractmethod
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every checkpoint tensor that it takes."""

    @abstractmethod
    def load(self, weights: Weights) -> None:
        """Take its tensors from ``weights``, and have the backend make the op that computes it."""

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes its weights will take, without padding; ``itemsize``: that of the model's type."""
        return self.num_weights * itemsize

    def step_weights(self, itemsize: int) -> tuple[StepWeights, ...]:
        """Its weights as a step uses them; ``itemsize``: that of the model's type."""
        return (StepWeights(self.num_weights, self.weight_bytes(itemsize)),)

    @property
    def num_weights(self) -> int:
        """Weights that its tensors represent."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes its loaded weights take, packed and padded."""
