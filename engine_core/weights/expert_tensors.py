"""The layouts in which checkpoints store the weights of experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch

from engine_core.weights.experts import ExpertsShape, ExpertsShard, ExpertWeights
from engine_core.weights.source import TensorRows, Weights


@dataclass(frozen=True, slots=True)
class StackedParameters:
    """The two parameters of all experts that transformers' model has, whatever the checkpoint; adapters name them.

    They are [E, outputs, inputs].
    """

    gate_up: str = "gate_up_proj"
    """Below the experts' prefix; in ungated experts, it has the name of ups in checkpoints."""
    down: str = "down_proj"
    interleaved: bool = False
    """Whether gates and ups alternate, instead of all gates before all ups."""
    inputs_first: bool = False
    """Whether they are [E, inputs, outputs]."""
    is_transposed: bool = False
    """Whether transformers' module says that they are."""


class ExpertTensors(ABC):
    """A checkpoint's layout for the tensors of experts."""

    prefix: str
    """The common prefix of their names: ``model.layers.0.mlp.experts``."""
    parameters: StackedParameters

    @property
    def separate(self) -> SeparateExperts:
        """The layout with one tensor per projection and expert, as most quantizers write it."""
        return SeparateExperts(self.prefix)

    @abstractmethod
    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""

    @abstractmethod
    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        """The experts of ``shard``, in ascending order; take an expert's tensors before reading the next."""


@dataclass(frozen=True, slots=True)
class ExpertProjections:
    """The weights of one expert, or a rank's share of them; names are those of linear layers."""

    gate: TensorRows | None
    """None: experts have no gates."""
    up: TensorRows
    down: TensorRows

    def __iter__(self) -> Iterator[TensorRows]:
        return iter((self.up, self.down) if self.gate is None else (self.gate, self.up, self.down))


@dataclass(frozen=True, slots=True)
class SeparateExperts(ExpertTensors):
    """A tensor for each projection of each expert, or two with biases."""

    prefix: str
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    parameters: StackedParameters = StackedParameters()

    @property
    def separate(self) -> Self:
        return self

    def projections(self, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertProjections]:
        """For each expert of ``shard``."""
        inner, hidden = shape.intermediate_size, shape.hidden_size
        for expert in shard.experts:
            gate = TensorRows(f"{self.prefix}.{expert}.{self.gate}", inner, shard.inner)
            yield ExpertProjections(
                gate if shape.gated else None,
                TensorRows(f"{self.prefix}.{expert}.{self.up}", inner, shard.inner),
                TensorRows(f"{self.prefix}.{expert}.{self.down}", hidden, shard.hidden),
            )

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for expert in self.projections(shape, shape.whole):
            for piece, inputs in zip(expert, shape.inputs, strict=True):
                found[f"{piece.name}.weight"] = (piece.count, inputs)
        return found | self.bias_shapes(shape)

    def bias_shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        if not shape.bias:
            return {}
        pieces = (piece for expert in self.projections(shape, shape.whole) for piece in expert)
        return {f"{piece.name}.bias": (piece.count,) for piece in pieces}

    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        for expert in self.projections(shape, shard):
            tensors = (weights.take(piece.of("weight")) for each in [expert] for piece in each)
            yield ExpertWeights(tensors, biases_of(expert, weights) if shape.bias else None)


def biases_of(expert: ExpertProjections, weights: Weights) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The biases of each projection's rows; copies."""
    gate, up, down = (
        weights.take_float32(f"{piece.name}.bias")[piece.rows.start : piece.rows.stop] for piece in expert
    )
    return gate, up, down


@dataclass(frozen=True, slots=True)
class StackedExperts(ExpertTensors):
    """All experts in two tensors: [E, 2 · I, H] of gates, then ups; and [E, H, I]."""

    prefix: str
    gate_up: str = "gate_up_proj"
    down: str = "down_proj"
    parameters: StackedParameters = StackedParameters()

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.intermediate_size
        return {
            f"{self.prefix}.{self.gate_up}": (experts, 2 * inner, hidden),
            f"{self.prefix}.{self.down}": (experts, hidden, inner),
        }

    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        gate_up, down = self.shapes(shape)
        gates, size = shard.inner, shape.intermediate_size
        ups = range(size + gates.start, size + gates.stop)
        wanted = ((gate_up, gates), (gate_up, ups), (down, shard.hidden))
        for expert in shard.experts:
            yield ExpertWeights(weights.take_row(name, each, rows) for each in [expert] for name, rows in wanted)


@dataclass(frozen=True, slots=True)
class TransposedExperts(ExpertTensors):
    """All experts in two tensors: [E, H, 2 · I] of gates, then ups; and [E, I, H]."""

    prefix: str
    parameters: StackedParameters = StackedParameters(inputs_first=True)

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.intermediate_size
        return {
            f"{self.prefix}.gate_up_proj": (experts, hidden, 2 * inner),
            f"{self.prefix}.down_proj": (experts, inner, hidden),
        }

    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        for expert in shard.experts:
            yield ExpertWeights(self._tensors(weights, shape, shard, expert))

    def _tensors(
        self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard, expert: int
    ) -> Iterator[torch.Tensor]:
        gate_up, down = self.shapes(shape)
        gates, ups = weights.take_row(gate_up, expert).t().chunk(2)
        yield from (each[shard.inner.start : shard.inner.stop] for each in (gates, ups))
        yield weights.take_row(down, expert).t()[shard.hidden.start : shard.hidden.stop]


@dataclass(frozen=True, slots=True)
class InterleavedExperts(ExpertTensors):
    """All experts in two tensors: [E, H, 2 · I] of alternating gates and ups; and [E, I, H]; with biases."""

    prefix: str
    parameters: StackedParameters = StackedParameters(interleaved=True, inputs_first=True, is_transposed=True)

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.intermediate_size
        return {
            f"{self.prefix}.gate_up_proj": (experts, hidden, 2 * inner),
            f"{self.prefix}.down_proj": (experts, inner, hidden),
            f"{self.prefix}.gate_up_proj_bias": (experts, 2 * inner),
            f"{self.prefix}.down_proj_bias": (experts, hidden),
        }

    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        gate_up_name, down_name, *biases = self.shapes(shape)
        gate_up_biases, down_biases = (weights.take_float32(name) for name in biases)
        for expert in shard.experts:
            tensors = self._tensors(weights, gate_up_name, down_name, expert, shard)
            yield ExpertWeights(tensors, own_biases(gate_up_biases[expert], down_biases[expert], shard))

    @staticmethod
    def _tensors(weights: Weights, gate_up: str, down: str, expert: int, shard: ExpertsShard) -> Iterator[torch.Tensor]:
        inner, hidden = shard.inner, shard.hidden
        rows = weights.take_row(gate_up, expert).t()[2 * inner.start : 2 * inner.stop]
        yield from (rows[::2], rows[1::2])
        yield weights.take_row(down, expert).t()[hidden.start : hidden.stop]


def own_biases(
    gate_up: torch.Tensor, down: torch.Tensor, shard: ExpertsShard
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The biases of ``shard``, of an expert's ``gate_up`` [2 · I], alternating, and ``down`` [H]."""
    inner, hidden = shard.inner, shard.hidden
    own = gate_up[2 * inner.start : 2 * inner.stop]
    return own[::2], own[1::2], down[hidden.start : hidden.stop]
