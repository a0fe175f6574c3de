"""How a linear layer's weight is stored and multiplied; one file per method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from engine_core.layers.weights import Weights
from engine_core.ops.base import ExpertsOp, ExpertsShape, LinearOp, OpsBackend


@dataclass(frozen=True, slots=True)
class Features:
    """The inputs or the outputs of a linear layer: ``groups`` (heads, gate and up) of ``size`` features each.

    Each group is padded on its own, so that a head begins where its kernel expects it.
    """

    groups: int
    size: int
    fixed: bool = False
    """Never padded: nothing reads these outputs in whole registers."""
    parts: tuple[int, ...] = ()
    """Sizes of a group's parts, each of which is padded on its own; () for a single part."""

    @property
    def count(self) -> int:
        """Features without padding."""
        return self.groups * self.size

    def padded(self, backend: OpsBackend) -> int:
        """The size of a group with its padding."""
        return self.size if self.fixed else sum(backend.padded(part) for part in self.parts or (self.size,))

    def pad(self, x: torch.Tensor, dim: int, backend: OpsBackend) -> torch.Tensor:
        """``x``, which has these features along ``dim``, with zeros after each part; ``x`` itself without padding."""
        if (size := self.padded(backend)) == self.size:
            return x
        grouped = x.reshape(*x.shape[:dim], self.groups, self.size, *x.shape[dim + 1 :])
        padded = x.new_zeros(*x.shape[:dim], self.groups, size, *x.shape[dim + 1 :])
        source = target = 0
        for part in self.parts or (self.size,):
            padded.narrow(dim + 1, target, part).copy_(grouped.narrow(dim + 1, source, part))
            source, target = source + part, target + backend.padded(part)
        return padded.flatten(dim, dim + 1)


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer made of one or several tensors of a checkpoint, whose outputs lie side by side."""

    names: tuple[str, ...]
    """Names of the checkpoint's tensors, without ``.weight`` and ``.bias``."""
    rows: tuple[int, ...]
    """Outputs of each of them."""
    inputs: Features
    outputs: Features
    bias: bool


class QuantMethod(ABC):
    """Names, reads and packs the tensors of linear layers (vLLM's ``QuantizeMethodBase``)."""

    def tensors(self, shape: LinearShape) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the checkpoint that the layer takes."""
        columns = shape.inputs.count
        wanted: dict[str, tuple[int, ...]] = {}
        for name, rows in zip(shape.names, shape.rows, strict=True):
            wanted[f"{name}.weight"] = (rows, columns)
            if shape.bias:
                wanted[f"{name}.bias"] = (rows,)
        return wanted

    @abstractmethod
    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        """Bytes that the layer will take, without padding; ``itemsize`` is that of the model's type."""

    @abstractmethod
    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        """Take the layer's tensors from ``weights``."""

    def experts(self, shape: ExpertsShape, dtype: torch.dtype, backend: OpsBackend) -> ExpertsOp:
        """Experts without weights, of a model of type ``dtype``."""
        return backend.experts(shape, dtype)

    def expert_bytes(self, shape: ExpertsShape, itemsize: int) -> int:
        """Bytes that experts will take, without padding."""
        return shape.num_weights * itemsize


class Unquantized(QuantMethod):
    """Weights in the model's type, as the backend packs them."""

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        inputs = shape.inputs.count + (1 if shape.bias else 0)
        return sum(shape.rows) * inputs * itemsize  # a tensor that is named twice is kept twice

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        bias = take_bias(shape, weights, backend)
        return backend.linear(take_weight(shape, weights, backend), bias)


def take_weight(shape: LinearShape, weights: Weights, backend: OpsBackend) -> torch.Tensor:
    """[N, K] in the model's type, padded; valid until the next tensor is taken."""
    weight = weights.take(*(f"{name}.weight" for name in shape.names))
    return shape.inputs.pad(shape.outputs.pad(weight, 0, backend), 1, backend)


def take_bias(shape: LinearShape, weights: Weights, backend: OpsBackend) -> torch.Tensor | None:
    """[N], padded, or None where the layer has none; a copy."""
    if not shape.bias:
        return None
    return shape.outputs.pad(weights.take(*(f"{name}.bias" for name in shape.names)).clone(), 0, backend)
