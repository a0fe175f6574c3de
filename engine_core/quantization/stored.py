"""Layers whose weights are quantized in the checkpoint and stay so: the base of methods for all formats."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from engine_core.ops.base import ExpertsOp, ExpertsSplit, LinearOp, OpsBackend
from engine_core.ops.segmented_linear import SegmentedLinear
from engine_core.quantization.base import QuantMethod, take_bias
from engine_core.quantization.row_padding import RowPadding
from engine_core.quantization.stored_experts import StoredExperts
from engine_core.weights.expert_tensors import ExpertTensors
from engine_core.weights.experts import ExpertsShape, ExpertsShard
from engine_core.weights.features import LinearShape
from engine_core.weights.quantized_weight import QuantFormat, QuantizedWeight
from engine_core.weights.source import TensorRows, Weights


class StoredMethod(QuantMethod):
    """Subclasses read the format of linear layers, and of each projection of an expert (…experts.3.gate_proj)."""

    separates_experts: ClassVar[bool] = False
    """Whether unquantized experts, too, have a tensor per projection, even if their architecture fuses them."""

    @abstractmethod
    def format(self, name: str, inputs: int) -> QuantFormat | None:
        """The format of the weight with prefix ``name``; None: it is not quantized."""

    @abstractmethod
    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        """The rows of ``piece``, a few at a time, in order. Raises ``CheckpointError`` for unusable numbers."""

    def input_order(self, name: str, inputs: int, weights: Weights) -> torch.Tensor | None:
        """[K] int64: the input of each column of ``read``; None: they are in order."""
        return None

    def rows(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        """As ``read``, or dummies if ``weights`` are."""
        if weights.make_quantized is None:
            return self.read(piece, inputs, weights)
        kept = self.format(piece.name, inputs)
        assert kept is not None
        return weights.make_quantized(kept, piece, inputs)

    def order(self, piece: TensorRows, inputs: int, weights: Weights) -> torch.Tensor | None:
        """As ``input_order``, for ``rows``."""
        return self.input_order(piece.name, inputs, weights) if weights.make_quantized is None else None

    @property
    def expanding(self) -> QuantMethod:
        return Expanding(self)

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        inputs, total = shape.inputs.count, 0
        for piece in shape.pieces:
            kept = self.format(piece.name, inputs)
            rows = len(piece.rows)
            total += rows * inputs * itemsize if kept is None else kept.nbytes(rows, inputs)
        return total + (shape.outputs.count * itemsize if shape.bias else 0)

    def take_expanded(self, piece: TensorRows, inputs: int, weights: Weights) -> torch.Tensor:
        if self.format(piece.name, inputs) is None:
            return super().take_expanded(piece, inputs, weights)
        order = self.order(piece, inputs, weights)
        rows = torch.cat([part.dequantized().to(weights.dtype) for part in self.rows(piece, inputs, weights)])
        return rows if order is None else rows[:, order.argsort()]

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        if shape.inputs.padded(backend) != shape.inputs.size:
            # Zeros between columns would shift them into other groups.
            return Expanding(self).load(shape, weights, backend)
        bias = take_bias(shape, weights, backend)
        padding = RowPadding(shape.outputs, backend)
        ops: list[LinearOp] = []
        first = column = 0
        for segment in self._segments(shape, weights):
            rows = range(first, first + sum(len(piece.rows) for piece in segment.pieces))
            outputs = padding.count(rows)
            own = None if bias is None else bias[column : column + outputs]
            if segment.kept is None:
                weight = weights.take(*(piece.of("weight") for piece in segment.pieces))
                ops.append(backend.linear(padding.of_tensor(weight, first), own))
            else:
                inputs, dtype = shape.inputs.count, weights.dtype
                read = (part for piece in segment.pieces for part in self.rows(piece, inputs, weights))
                parts = padding.of_parts(read, first)
                ops.append(
                    backend.quantized_linear(segment.kept, outputs, inputs, dtype, parts, own, segment.input_order)
                )
            first, column = rows.stop, column + outputs
        return ops[0] if len(ops) == 1 else SegmentedLinear(ops)

    def _segments(self, shape: LinearShape, weights: Weights) -> Iterator[_Segment]:
        found: _Segment | None = None
        for piece in shape.pieces:
            kept = self.format(piece.name, shape.inputs.count)
            order = None if kept is None else self.order(piece, shape.inputs.count, weights)
            if found is not None and found.kept == kept and _equal(found.input_order, order):
                found.pieces.append(piece)
            else:
                if found is not None:
                    yield found
                found = _Segment(kept, order, [piece])
        assert found is not None
        yield found

    def expert_tensors(self, shape: ExpertsShape, tensors: ExpertTensors) -> dict[str, tuple[int, ...]]:
        experts = self._experts(shape, tensors)
        return super().expert_tensors(shape, tensors) if experts is None else experts.shapes()

    def expert_bytes(
        self, shape: ExpertsShape, tensors: ExpertTensors, itemsize: int, shard: ExpertsShard | None = None
    ) -> int:
        if (experts := self._experts(shape, tensors)) is None:
            return super().expert_bytes(shape, tensors, itemsize, shard)
        return experts.nbytes(itemsize, shard or shape.whole)

    def load_experts(
        self,
        shape: ExpertsShape,
        tensors: ExpertTensors,
        weights: Weights,
        backend: OpsBackend,
        split: ExpertsSplit | None = None,
    ) -> ExpertsOp:
        if (experts := self._experts(shape, tensors)) is None:
            return super().load_experts(shape, tensors, weights, backend, split)
        return experts.load(weights, backend, split)

    def _experts(self, shape: ExpertsShape, tensors: ExpertTensors) -> StoredExperts | None:
        """None if they are stored as in an unquantized checkpoint."""
        experts = StoredExperts(self, shape, tensors.separate)
        return experts if self.separates_experts or experts.are_quantized else None


class Expanding(QuantMethod):
    """Layers expanded to the model's type when they are loaded."""

    def __init__(self, stored: StoredMethod) -> None:
        self._stored = stored

    def tensors_of(self, piece: TensorRows, inputs: int) -> dict[str, tuple[int, ...]]:
        return self._stored.tensors_of(piece, inputs)

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        return shape.outputs.count * (shape.inputs.count + (1 if shape.bias else 0)) * itemsize

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        bias = take_bias(shape, weights, backend)
        inputs = shape.inputs.count
        rows = (self._stored.take_expanded(piece, inputs, weights).clone() for piece in shape.pieces)
        weight = torch.cat(list(rows))
        return backend.linear(shape.inputs.pad(shape.outputs.pad(weight, 0, backend), 1, backend), bias)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Neighbouring pieces of a layer in one format, with inputs in one order."""

    kept: QuantFormat | None
    input_order: torch.Tensor | None
    pieces: list[TensorRows]


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
