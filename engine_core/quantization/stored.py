"""Layers whose weights are quantized in the checkpoint, and stay so: what the methods of all formats share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from itertools import accumulate

import torch

from engine_core.layers.features import Features, LinearShape
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
        rows = torch.cat([part.dequantized().to(weights.dtype) for part in self.read(piece, inputs, weights)])
        return rows if order is None else rows[:, order.argsort()]

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        inputs = shape.inputs.count
        bias = take_bias(shape, weights, backend)
        if shape.inputs.padded(backend) != shape.inputs.size:
            # Zeros between columns would shift them into other groups.
            weight = torch.cat([self.take_expanded(piece, inputs, weights).clone() for piece in shape.pieces])
            return backend.linear(shape.inputs.pad(shape.outputs.pad(weight, 0, backend), 1, backend), bias)
        padding = _RowPadding(shape.outputs, backend)
        ops: list[LinearOp] = []
        first = column = 0
        for kept, order, pieces in self._segments(shape, weights):
            rows = range(first, first + sum(len(piece.rows) for piece in pieces))
            outputs = padding.count(rows)
            own = None if bias is None else bias[column : column + outputs]
            if kept is None:
                weight = weights.take(*(piece.of("weight") for piece in pieces))
                ops.append(backend.linear(padding.of_tensor(weight, rows.start), own))
            else:
                parts = (part for piece in pieces for part in self.read(piece, inputs, weights))
                padded = padding.of_parts(parts, rows.start)
                ops.append(backend.quantized_linear(kept, outputs, inputs, weights.dtype, padded, own, order))
            first, column = rows.stop, column + outputs
        return ops[0] if len(ops) == 1 else SegmentedLinear(ops)

    def _segments(
        self, shape: LinearShape, weights: Weights
    ) -> Iterator[tuple[QuantFormat | None, torch.Tensor | None, list[TensorRows]]]:
        """Neighbouring pieces in one format, with inputs in one order."""
        inputs, pieces = shape.inputs.count, list(shape.pieces)
        while pieces:
            kept, order = self._kept(pieces[0], inputs, weights)
            alike = [pieces.pop(0)]
            while pieces:
                other, others_order = self._kept(pieces[0], inputs, weights)
                if other != kept or not _equal(order, others_order):
                    break
                alike.append(pieces.pop(0))
            yield kept, order, alike

    def _kept(self, piece: TensorRows, inputs: int, weights: Weights) -> tuple[QuantFormat | None, torch.Tensor | None]:
        kept = self.format(piece.name, inputs)
        return kept, None if kept is None else self.input_order(piece.name, inputs, weights)


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


class _RowPadding:
    """Zeros after some of a layer's outputs."""

    def __init__(self, outputs: Features, backend: OpsBackend) -> None:
        widths = [] if outputs.padded(backend) == outputs.size else (outputs.parts or (outputs.size,)) * outputs.groups
        ends = accumulate(widths)
        self._zeros = {end: backend.padded(width) - width for end, width in zip(ends, widths, strict=True)}
        """How many, by the number of the output that they precede."""

    def count(self, rows: range) -> int:
        """Outputs of ``rows`` with the zeros behind each of them."""
        return len(rows) + sum(zeros for end, zeros in self._zeros.items() if rows.start < end <= rows.stop)

    def of_tensor(self, rows: torch.Tensor, first: int) -> torch.Tensor:
        """``rows`` [N, K], which begin with output ``first``."""
        runs = list(self._runs(first, len(rows)))
        if len(runs) == 1 and runs[0][2] == 0:
            return rows
        return torch.cat([torch.nn.functional.pad(rows[start:stop], (0, 0, 0, zeros)) for start, stop, zeros in runs])

    def of_parts(self, parts: Iterator[QuantizedWeight], first: int) -> Iterator[QuantizedWeight]:
        for part in parts:
            count = len(part.codes)
            if self.count(range(first, first + count)) == count:
                yield part
            else:
                yield part.each(partial(self.of_tensor, first=first))
            first += count

    def _runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Where runs of neighbouring rows start and stop, counted from ``first``, and the zeros behind them."""
        start = 0
        for end, zeros in self._zeros.items():
            if first < end <= first + count:
                yield start, end - first, zeros
                start = end - first
        if start < count:
            yield start, count, 0
