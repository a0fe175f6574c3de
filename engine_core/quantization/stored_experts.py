"""Experts whose weights are quantized in the checkpoint, with a tensor per projection, in any format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from engine_core.ops.base import ExpertsOp, ExpertsSplit, OpsBackend
from engine_core.weights.expert_tensors import ExpertProjections, SeparateExperts, biases_of
from engine_core.weights.experts import ExpertsShape, ExpertsShard, ExpertWeights, QuantizedExpertWeights
from engine_core.weights.quantized_weight import QuantFormat, QuantizedWeight
from engine_core.weights.source import TensorRows, Weights

InputOrders = tuple[torch.Tensor, torch.Tensor]
"""As in ``QuantizedExpertWeights``."""


@dataclass(frozen=True, slots=True)
class ExpertFormats:
    """The formats of all experts of a layer."""

    gate_up: QuantFormat
    down: QuantFormat

    def nbytes(self, shape: ExpertsShape, shard: ExpertsShard) -> int:
        """Bytes of a rank's ``shard``, without padding."""
        gate_up = self.gate_up.nbytes(shape.num_expanding * len(shard.inner), shape.hidden_size)
        down = self.down.nbytes(len(shard.hidden), shape.intermediate_size)
        biases = 4 * (2 * len(shard.inner) + len(shard.hidden)) if shape.bias else 0
        return len(shard.experts) * (gate_up + down + biases)


class ReadsProjections(Protocol):
    """The part of ``StoredMethod`` that ``StoredExperts`` uses."""

    def format(self, name: str, inputs: int) -> QuantFormat | None: ...

    def tensors_of(self, piece: TensorRows, inputs: int) -> dict[str, tuple[int, ...]]: ...

    def rows(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]: ...

    def order(self, piece: TensorRows, inputs: int, weights: Weights) -> torch.Tensor | None: ...

    def take_expanded(self, piece: TensorRows, inputs: int, weights: Weights) -> torch.Tensor: ...


class StoredExperts:
    """Experts whose projections ``method`` reads like weights of linear layers."""

    def __init__(self, method: ReadsProjections, shape: ExpertsShape, tensors: SeparateExperts) -> None:
        self._method = method
        self._shape = shape
        self._tensors = tensors

    @cached_property
    def _kept(self) -> list[set[QuantFormat | None]]:
        """All formats of gates, if any, of ups and of downs."""
        found: list[set[QuantFormat | None]] = [set() for _ in self._shape.inputs]
        for expert in self._tensors.projections(self._shape, self._shape.whole):
            for formats, piece, inputs in zip(found, expert, self._shape.inputs, strict=True):
                formats.add(self._method.format(piece.name, inputs))
        return found

    @property
    def are_quantized(self) -> bool:
        """Whether any projection is quantized."""
        return any(formats != {None} for formats in self._kept)

    @property
    def formats(self) -> ExpertFormats | None:
        """None if experts have no format in common: then they are expanded."""
        *gate, up, down = self._kept
        if gate not in ([], [up]) or len(up) > 1 or len(down) > 1:
            return None
        (of_gate_up,), (of_down,) = up, down
        return None if of_gate_up is None or of_down is None else ExpertFormats(of_gate_up, of_down)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""
        found: dict[str, tuple[int, ...]] = {}
        for expert in self._tensors.projections(self._shape, self._shape.whole):
            for piece, inputs in self._pieces(expert):
                found |= self._method.tensors_of(piece, inputs)
        return found | self._tensors.bias_shapes(self._shape)

    def nbytes(self, itemsize: int, shard: ExpertsShard) -> int:
        """Bytes of a rank's ``shard``, without padding."""
        if (formats := self.formats) is None:
            return self._shape.num_weights_of(shard) * itemsize
        return formats.nbytes(self._shape, shard)

    def load(self, weights: Weights, backend: OpsBackend, split: ExpertsSplit | None) -> ExpertsOp:
        """``QuantMethod.load_experts``."""
        shape, shard = self._shape, self._shape.whole if split is None else split.own
        formats = self.formats
        orders = None if formats is None else self._input_orders(weights)
        if formats is None or orders is None:
            op = backend.experts(shape, weights.dtype, split)
            op.load(self._expanded(weights, shard))
            return op
        own = orders[shard.experts.start : shard.experts.stop]
        experts = self._quantized(weights, shard, own)
        return backend.quantized_experts(shape, formats.gate_up, formats.down, weights.dtype, experts, split)

    def _input_orders(self, weights: Weights) -> list[InputOrders | None] | None:
        """The input orders of all experts, of other ranks' too; None if any gate and up differ in theirs: then all
        experts are expanded, on all ranks alike.
        """
        found: list[InputOrders | None] = []
        for expert in self._tensors.projections(self._shape, self._shape.whole):
            orders = [self._method.order(piece, inputs, weights) for piece, inputs in self._pieces(expert)]
            if all(order is None for order in orders):
                found.append(None)
                continue
            *gate, up, down = (
                torch.arange(inputs) if order is None else order
                for order, inputs in zip(orders, self._shape.inputs, strict=True)
            )
            if not all(torch.equal(each, up) for each in gate):
                return None
            found.append((up, down))
        return found

    def _quantized(
        self, weights: Weights, shard: ExpertsShard, orders: list[InputOrders | None]
    ) -> Iterator[QuantizedExpertWeights]:
        for expert, own in zip(self._tensors.projections(self._shape, shard), orders, strict=True):
            parts = (self._method.rows(piece, inputs, weights) for piece, inputs in self._pieces(expert))
            yield QuantizedExpertWeights(parts, self._biases(expert, weights), own)

    def _expanded(self, weights: Weights, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        for expert in self._tensors.projections(self._shape, shard):
            tensors = (self._method.take_expanded(piece, inputs, weights) for piece, inputs in self._pieces(expert))
            yield ExpertWeights(tensors, self._biases(expert, weights))

    def _pieces(self, expert: ExpertProjections) -> Iterator[tuple[TensorRows, int]]:
        return zip(expert, self._shape.inputs, strict=True)

    def _biases(
        self, expert: ExpertProjections, weights: Weights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        return biases_of(expert, weights) if self._shape.bias else None
