"""How a linear layer's weight is stored and multiplied; one file per method."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from engine_core.layers.features import LinearShape
from engine_core.layers.weights import Weights
from engine_core.ops.base import ExpertsOp, ExpertsShape, ExpertsShard, ExpertsSplit, LinearOp, OpsBackend


class QuantMethod(ABC):
    """Names, reads and packs the tensors of linear layers (vLLM's ``QuantizeMethodBase``)."""

    def tensors(self, shape: LinearShape) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the checkpoint that the layer takes."""
        columns = shape.inputs.count
        wanted: dict[str, tuple[int, ...]] = {}
        for piece in shape.pieces:
            wanted[f"{piece.name}.weight"] = (piece.count, columns)
            if shape.bias:
                wanted[f"{piece.name}.bias"] = (piece.count,)
        return wanted

    @abstractmethod
    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        """Bytes that the layer will take, without padding; ``itemsize`` is that of the model's type."""

    @abstractmethod
    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        """Take the layer's tensors from ``weights``."""

    def experts(
        self, shape: ExpertsShape, dtype: torch.dtype, backend: OpsBackend, split: ExpertsSplit | None = None
    ) -> ExpertsOp:
        """Experts without weights, of a model of type ``dtype``; this rank's part of them with a ``split``."""
        return backend.experts(shape, dtype, split)

    def expert_bytes(self, shape: ExpertsShape, itemsize: int, shard: ExpertsShard | None = None) -> int:
        """Bytes that experts, or a rank's ``shard`` of them, will take, without padding."""
        return shape.num_weights_of(shard or shape.whole) * itemsize


class Unquantized(QuantMethod):
    """Weights in the model's type, as the backend packs them."""

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        inputs = shape.inputs.count + (1 if shape.bias else 0)
        return shape.outputs.count * inputs * itemsize  # a tensor that is named twice is kept twice

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        bias = take_bias(shape, weights, backend)
        return backend.linear(take_weight(shape, weights, backend), bias)


def take_weight(shape: LinearShape, weights: Weights, backend: OpsBackend) -> torch.Tensor:
    """[N, K] in the model's type, padded; valid until the next tensor is taken."""
    weight = weights.take(*(piece.of("weight") for piece in shape.pieces))
    return shape.inputs.pad(shape.outputs.pad(weight, 0, backend), 1, backend)


def take_bias(shape: LinearShape, weights: Weights, backend: OpsBackend) -> torch.Tensor | None:
    """[N], padded, or None where the layer has none; a copy."""
    if not shape.bias:
        return None
    bias = weights.take(*(piece.of("bias") for piece in shape.pieces))
    return shape.outputs.pad(bias.clone(), 0, backend)
