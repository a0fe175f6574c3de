"""Parts that only towers and projectors have: linear layers stored in other forms, and attention without a cache."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from engine_core.layers.part import Part
from engine_core.layers.part_factory import PartFactory
from engine_core.ops.base import LinearOp
from engine_core.vision.transformers_tower import attention
from engine_core.weights.features import Features
from engine_core.weights.source import Weights


class StoredMatrix(Part):
    """A linear layer whose weight is stored in another form than [N, K]: a convolution's, or transposed."""

    op: LinearOp

    def __init__(
        self,
        weight: str,
        stored: tuple[int, ...],
        as_matrix: Callable[[torch.Tensor], torch.Tensor],
        inputs: Features,
        outputs: Features,
        parts: PartFactory,
        bias: str | None = None,
    ) -> None:
        """``weight``: the tensor's name, of shape ``stored``; ``as_matrix`` gives its [N, K]. ``bias``: the name of a
        tensor [N].
        """
        self.outputs_per_row = outputs.count
        self._weight = weight
        self._stored = stored
        self._as_matrix = as_matrix
        self._inputs = inputs
        self._outputs = outputs
        self._bias = bias
        self._backend = parts.backend
        parts.parts.append(self)

    @classmethod
    def convolution(
        cls, name: str, channels: int, side: int, outputs: int, parts: PartFactory, *, bias: bool = True
    ) -> StoredMatrix:
        """A convolution of patches that do not overlap, of patches with their channels first."""
        return cls(
            f"{name}.weight",
            (outputs, channels, side, side),
            lambda weight: weight.reshape(outputs, -1),
            Features(1, channels * side * side),
            Features(1, outputs),
            parts,
            f"{name}.bias" if bias else None,
        )

    @classmethod
    def transposed(cls, name: str, inputs: int, outputs: int, parts: PartFactory) -> StoredMatrix:
        """The product x · W with the tensor ``name`` [K, N]."""
        return cls(
            name, (inputs, outputs), lambda w: w.t().contiguous(), Features(1, inputs), Features(1, outputs), parts
        )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        bias = {} if self._bias is None else {self._bias: (self._outputs.count,)}
        return {self._weight: self._stored} | bias

    def load(self, weights: Weights) -> None:
        bias = None
        if self._bias is not None:
            bias = self._outputs.pad(weights.take(self._bias).clone(), 0, self._backend)
        matrix = self._as_matrix(weights.take(self._weight))
        padded = self._inputs.pad(self._outputs.pad(matrix, 0, self._backend), 1, self._backend)
        self.op = self._backend.linear(padded, bias)

    @property
    def num_weights(self) -> int:
        return math.prod(self._stored) + (0 if self._bias is None else self._outputs.count)

    @property
    def nbytes(self) -> int:
        return self.op.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[M, N] of ``x`` [M, K], whose rows are padded here; plus ``residual`` [M, N], which may be overwritten."""
        missing = self.op.in_features - x.shape[1]
        padded = torch.nn.functional.pad(x, (0, missing)) if missing else x
        return self.op(padded, residual=residual)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """[T, Hq · D]: every row of ``query`` [T, Hq, D] attends to all of ``key`` and ``value`` [T, Hkv, D]."""
    queries, keys, values = (x[None].transpose(1, 2) for x in (query, key, value))
    return attention(queries, keys, values, scale=scale)[0].transpose(0, 1).flatten(1)
