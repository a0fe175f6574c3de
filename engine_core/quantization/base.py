"""How a linear layer's weight is stored and multiplied; one file per method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsOp, ExpertsSplit, LinearOp, OpsBackend, UnloadedExperts
from engine_core.weights.expert_tensors import ExpertTensors
from engine_core.weights.experts import ExpertsShape, ExpertsShard
from engine_core.weights.features import LinearShape
from engine_core.weights.source import TensorRows, Weights


class QuantMethod(ABC):
    """Names, reads and packs the tensors of linear layers (vLLM's ``QuantizeMethodBase``)."""

    def tensors(self, shape: LinearShape) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that the layer takes from the checkpoint."""
        wanted: dict[str, tuple[int, ...]] = {}
        for piece in shape.pieces:
            wanted |= self.tensors_of(piece, shape.inputs.count)
            if shape.bias:
                wanted[f"{piece.name}.bias"] = (piece.count,)
        return wanted

    def tensors_of(self, piece: TensorRows, inputs: int) -> dict[str, tuple[int, ...]]:
        """The tensors of one weight [``piece.count``, ``inputs``], without a bias."""
        return {f"{piece.name}.weight": (piece.count, inputs)}

    @abstractmethod
    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        """Bytes the layer will take, without padding; ``itemsize`` is that of the model's type."""

    @abstractmethod
    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        """Take the layer's tensors from ``weights``."""

    def take_expanded(self, piece: TensorRows, inputs: int, weights: Weights) -> torch.Tensor:
        """The rows of ``piece`` [rows, ``inputs``] in the model's type, for use outside linear layers; valid until
        the next tensor is taken.
        """
        return weights.take(piece.of("weight"))

    def keeps_table(self, shape: LinearShape) -> bool:
        """Whether an embedding table, the weight of a layer of ``shape``, stays quantized."""
        return False

    @property
    def expanding(self) -> QuantMethod:
        """The method for layers computed in the model's type whatever their format in the checkpoint: routers."""
        return Unquantized()

    def expert_tensors(self, shape: ExpertsShape, tensors: ExpertTensors) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that experts take from the checkpoint."""
        return tensors.shapes(shape)

    def expert_bytes(
        self, shape: ExpertsShape, tensors: ExpertTensors, itemsize: int, shard: ExpertsShard | None = None
    ) -> int:
        """Bytes that experts, or a rank's ``shard``, will take, without padding."""
        return shape.num_weights_of(shard or shape.whole) * itemsize

    def load_experts(
        self,
        shape: ExpertsShape,
        tensors: ExpertTensors,
        weights: Weights,
        backend: OpsBackend,
        split: ExpertsSplit | None = None,
    ) -> ExpertsOp:
        """Take the tensors of experts, or with a ``split`` this rank's shard, from ``weights``."""
        op = self.experts(shape, weights.dtype, backend, split)
        op.load(tensors.read(weights, shape, shape.whole if split is None else split.own))
        return op

    def experts(
        self, shape: ExpertsShape, dtype: torch.dtype, backend: OpsBackend, split: ExpertsSplit | None = None
    ) -> UnloadedExperts:
        """Experts still to be loaded, in ``dtype``, the model's."""
        return backend.experts(shape, dtype, split)


class Unquantized(QuantMethod):
    """Weights in the model's type, packed by the backend."""

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        inputs = shape.inputs.count + (1 if shape.bias else 0)
        return shape.outputs.count * inputs * itemsize  # a tensor named twice is kept twice

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        bias = take_bias(shape, weights, backend)
        return backend.linear(take_weight(shape, weights, backend), bias)


class QuantizationConfig(ABC):
    """The methods of a model's layers (vLLM's name)."""

    @abstractmethod
    def method(self, names: tuple[str, ...]) -> QuantMethod:
        """The method of the layer or experts with these prefixes in the checkpoint; several if fused."""

    def is_redundant(self, name: str) -> bool:
        """Whether a tensor may be present but unused, as ``LanguageModel.is_redundant``."""
        return False

    def must_be_zero(self, name: str) -> bool:
        """Whether a tensor that the model does not need may be present if all its numbers are zero."""
        return False

    def read_by(self, kernels: Kernels) -> QuantizationConfig:
        """The same configuration, reading faster with ``kernels`` where they support the format."""
        return self

    @abstractmethod
    def describe(self) -> str:
        """For a person: AWQ, 4 bits in groups of 128."""


@dataclass(frozen=True, slots=True)
class OneMethod(QuantizationConfig):
    """One method for all layers."""

    of_all: QuantMethod
    description: str = ""

    def method(self, names: tuple[str, ...]) -> QuantMethod:
        return self.of_all

    def describe(self) -> str:
        return self.description


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
