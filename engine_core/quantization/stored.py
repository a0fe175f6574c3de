"""Layers whose weights are quantized in the checkpoint, and stay so: what the methods of all formats share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import groupby

import torch

from engine_core.layers.features import LinearShape
from engine_core.layers.weights import TensorRows, Weights
from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.ops.quantized_weight import QuantFormat, QuantizedWeight
from engine_core.ops.segmented_linear import SegmentedLinear
from engine_core.quantization.base import QuantMethod, take_bias


class StoredMethod(QuantMethod):
    """Subclasses read a format."""

    @abstractmethod
    def format(self, name: str, inputs: int) -> QuantFormat | None:
        """How the weight of that prefix is kept; None: it is not quantized."""

    @abstractmethod
    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        """The rows of ``piece``, a few at a time, in order. Raises ``CheckpointError`` for unusable numbers."""

    def input_order(self, name: str, inputs: int, weights: Weights) -> torch.Tensor | None:
        """[K] int64: which input each column of ``read`` is for; None: they are in order."""
        return None

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
        order = self.input_order(piece.name, inputs, weights)
        rows = torch.cat([part.dequantized() for part in self.read(piece, inputs, weights)])
        return (rows if order is None else rows[:, order.argsort()]).to(weights.dtype)

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        inputs = shape.inputs.count
        bias = take_bias(shape, weights, backend)
        if any(features.padded(backend) != features.size for features in (shape.inputs, shape.outputs)):
            # Zeros between columns would shift them into other groups.
            weight = torch.cat([self.take_expanded(piece, inputs, weights) for piece in shape.pieces])
            return backend.linear(shape.inputs.pad(shape.outputs.pad(weight, 0, backend), 1, backend), bias)
        ops: list[LinearOp] = []
        first = 0
        for _, alike in groupby(shape.pieces, lambda piece: self.format(piece.name, inputs)):
            pieces = list(alike)
            outputs = sum(len(piece.rows) for piece in pieces)
            own = None if bias is None else bias[first : first + outputs]
            ops.append(self._segment(pieces, inputs, own, weights, backend))
            first += outputs
        return ops[0] if len(ops) == 1 else SegmentedLinear(ops)

    def _segment(
        self, pieces: list[TensorRows], inputs: int, bias: torch.Tensor | None, weights: Weights, backend: OpsBackend
    ) -> LinearOp:
        """Of pieces in one format."""
        kept = self.format(pieces[0].name, inputs)
        if kept is None:
            return backend.linear(weights.take(*(piece.of("weight") for piece in pieces)), bias)
        order = self.input_order(pieces[0].name, inputs, weights)
        outputs = sum(len(piece.rows) for piece in pieces)
        parts = (part for piece in pieces for part in self.read(piece, inputs, weights))
        return backend.quantized_linear(kept, outputs, inputs, weights.dtype, parts, bias, order)
