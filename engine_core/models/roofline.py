"""The bytes and operations of a model's step, and the shortest time in which a machine could do them (the roofline
model: Williams, Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785).

A step reads, once, every weight that any row uses, and every sequence's cache; a token costs two operations per weight
that it uses. A row uses the experts that it is routed to, and a step those of all its rows: a share that is estimated
as if all experts were equally likely. A step takes the longer of the two times. Activations, norms and sampling are
left out, so this is a lower bound, except with sliding windows: attention is assumed to read and see all tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, Self

from engine_core.layers.linear import ParallelLMHead
from engine_core.layers.part import Part, StepWeights
from engine_core.models.language_model import LanguageModel


class Speed(Protocol):
    """A machine's peak speed."""

    @property
    def bandwidth(self) -> float:
        """Bytes read from memory per second."""

    @property
    def flops(self) -> float:
        """Operations of matrix products per second, two per multiply-add."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one or several steps."""

    read: float = 0.0
    """Bytes."""
    operations: float = 0.0

    def seconds(self, speed: Speed) -> float:
        """The shortest time."""
        return max(self.read / speed.bandwidth, self.operations / speed.flops)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The costs of a model's steps."""

    layers: tuple[StepWeights, ...]
    """The weights of all layers, with an entry per way to choose experts."""
    heads: tuple[StepWeights, ...]
    """The weights of the output projection."""
    kv_bytes: int
    """Bytes per token in all layers' caches."""
    kv_read: int
    """Bytes that all layers read per seen token: each layer of a shared cache reads it."""
    attention: int
    """Operations of a token per token that it sees."""
    state_bytes: int = 0
    """Bytes of a sequence's states in all layers."""
    recurrence: int = 0
    """Operations of a token on its sequence's states."""

    @classmethod
    def of_model(cls, model: LanguageModel, itemsize: int = 2, cache_itemsize: int | None = None) -> Self:
        """For ``model``, whose weights need not be loaded; ``itemsize`` is that of its type, and the default of
        ``cache_itemsize``.
        """
        shape, specs = model.config, [spec for spec in model.config.cache_specs if spec is not None]
        owned = [shape.cache_specs[layer] for layer in shape.caching_layers]
        states = [spec for spec in shape.state_specs if spec is not None]
        of_cache = cache_itemsize or itemsize
        return cls(
            layers=_merged(model.layer_parts, itemsize),
            heads=_merged((part for part in model.parts if isinstance(part, ParallelLMHead)), itemsize),
            kv_bytes=of_cache * sum(spec.elements for spec in owned if spec is not None),
            kv_read=of_cache * sum(spec.elements for spec in specs),
            attention=sum(spec.operations(shape.num_heads) for spec in specs),
            state_bytes=sum(spec.nbytes(itemsize) for spec in states),
            recurrence=sum(spec.operations for spec in states),
        )

    @property
    def body(self) -> int:
        """Weights of the layers."""
        return sum(weights.count for weights in self.layers)

    @property
    def head(self) -> int:
        """Weights of the output projection."""
        return sum(weights.count for weights in self.heads)

    @property
    def active(self) -> float:
        """Weights that a token uses, including the output projection."""
        return sum(weights.per_row for weights in (*self.layers, *self.heads))

    def with_weight_bytes(self, size: float) -> Self:
        """The same with ``size`` bytes per weight: 2 for bfloat16, 1 for 8 bits."""
        layers, heads = (
            tuple(replace(weights, nbytes=weights.count * size) for weights in group)
            for group in (self.layers, self.heads)
        )
        return replace(self, layers=layers, heads=heads)

    def step(self, rows: float, sampled: float, seen: float, cached: float) -> Cost:
        """The cost of ``rows`` tokens, ``sampled`` of which go through the head; ``seen`` sums the tokens that each row
        sees, ``cached`` counts the tokens read from the cache. States are read and written once per sampled token.
        """
        met = ((self.layers, rows), (self.heads, sampled))
        return Cost(
            read=sum(each.bytes_read(count) for weights, count in met for each in weights)
            + cached * self.kv_read
            + 2 * sampled * self.state_bytes,
            operations=2 * sum(each.per_row * count for weights, count in met for each in weights)
            + seen * self.attention
            + rows * self.recurrence,
        )


def _merged(parts: Iterable[Part], itemsize: int) -> tuple[StepWeights, ...]:
    """The weights of ``parts``, summed per way to choose experts."""
    sums: dict[tuple[int, int], StepWeights] = {}
    for weights in (each for part in parts for each in part.step_weights(itemsize)):
        kind = weights.num_experts, weights.top_k
        so_far = sums.get(kind, StepWeights(0, 0.0, *kind))
        sums[kind] = replace(so_far, count=so_far.count + weights.count, nbytes=so_far.nbytes + weights.nbytes)
    return tuple(sums.values())
