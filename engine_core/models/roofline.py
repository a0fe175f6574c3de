"""What a step of a model must read and compute, and the shortest time in which a machine could do that (the roofline
model: Williams, Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785).

A step reads every matrix once and the keys and values of every sequence; a token costs two operations per weight that
it meets. A step takes the longer of the two times. Activations, norms and sampling are left out, so this is a lower
bound, but for sliding windows: attention is taken to read and see all tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self

from engine_core.models.interface import LanguageModel


class Speed(Protocol):
    """What a machine can do at best."""

    @property
    def bandwidth(self) -> float:
        """Bytes read from memory per second."""

    @property
    def flops(self) -> float:
        """Operations of matrix products per second, two for each multiply-add."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one or several steps cost."""

    read: float = 0.0
    """Bytes."""
    operations: float = 0.0

    def seconds(self, speed: Speed) -> float:
        """The least time."""
        return max(self.read / speed.bandwidth, self.operations / speed.flops)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a model's steps cost."""

    body: int
    """Weights of the layers."""
    head: int
    """Weights of the output projection."""
    kv_bytes: int
    """Bytes of what all layers keep of one token."""
    attention: int
    """Operations of one token per token that it sees."""
    weight_bytes: float
    """Bytes of one weight: 2 for bfloat16, 1 for 8 bits."""

    @classmethod
    def of_model(cls, model: LanguageModel, weight_bytes: float, kv_bytes: int = 2) -> Self:
        """For ``model``, whose weights need not be loaded; ``kv_bytes`` are those of one element of the cache."""
        shape, specs = model.config, model.config.cache_specs
        body = sum(math.prod(size) for name, size in model.tensors().items() if model.is_of_layer(name))
        return cls(
            body=body,
            head=shape.vocab_size * model.embedding_size,
            kv_bytes=kv_bytes * sum(spec.elements for spec in specs),
            attention=sum(spec.operations(shape.num_heads) for spec in specs),
            weight_bytes=weight_bytes,
        )

    def step(self, rows: float, sampled: float, seen: float, cached: float) -> Cost:
        """The cost of ``rows`` tokens of which ``sampled`` go through the head; ``seen`` is the sum over rows of the
        tokens that each sees, ``cached`` the tokens whose keys and values are read.
        """
        return Cost(
            read=(self.body + (self.head if sampled else 0)) * self.weight_bytes + cached * self.kv_bytes,
            operations=2.0 * (rows * self.body + sampled * self.head) + seen * self.attention,
        )
