"""Linear layers behind a model, which make results of few rows: whole on every rank, and in float32."""

from __future__ import annotations

import torch

from engine_core.layers.part import Part
from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.weights.features import Features
from engine_core.weights.source import Weights


class Float32Linear(Part):
    """y = x · Wᵀ + b. Every rank has all of it; weights are not rounded to the model's type."""

    op: LinearOp

    def __init__(self, name: str, inputs: int, outputs: int, backend: OpsBackend, *, bias: bool) -> None:
        """``name``: of the layer, without ``.weight``."""
        self._name = name
        self._inputs = Features(1, inputs)
        self._outputs = outputs
        self._bias = bias
        self._backend = backend

    def tensors(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {f"{self._name}.weight": (self._outputs, self._inputs.count)}
        return shapes | ({f"{self._name}.bias": (self._outputs,)} if self._bias else {})

    def load(self, weights: Weights) -> None:
        bias = weights.take_float32(f"{self._name}.bias") if self._bias else None
        self.op = self._backend.linear(self._padded(weights.take_float32(f"{self._name}.weight")), bias)

    def _padded(self, weight: torch.Tensor) -> torch.Tensor:
        return self._inputs.pad(weight, 1, self._backend)

    def weight_bytes(self, itemsize: int) -> int:
        return self.num_weights * 4

    @property
    def nbytes(self) -> int:
        return self.op.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, N] float32 for ``x`` [M, K] float32."""
        return self.op(self._inputs.pad(x, 1, self._backend))


class TokenRowsLinear(Float32Linear):
    """The rows of some tokens from the weight of a language model's head, which may also be its embedding."""

    def __init__(
        self, tensor: str, vocab_size: int, inputs: int, token_ids: tuple[int, ...], backend: OpsBackend
    ) -> None:
        """``tensor``: the name of the weight [V, K]."""
        super().__init__(tensor, inputs, len(token_ids), backend, bias=False)
        self._vocab_size = vocab_size
        self._token_ids = token_ids

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {self._name: (self._vocab_size, self._inputs.count)}

    @property
    def num_weights(self) -> int:
        return self._outputs * self._inputs.count

    def load(self, weights: Weights) -> None:
        taken = (weights.take_row(self._name, token_id) for token_id in self._token_ids)
        rows = [row.to(torch.float32, copy=True) for row in taken]
        self.op = self._backend.linear(self._padded(torch.stack(rows)), None)
