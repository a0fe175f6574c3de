"""The parts that models are written from: each knows its role and its tensors in a checkpoint, and loads them.

Names and roles are vLLM's. With several ranks, every projection is split along its outputs, ``o_proj`` and
``down_proj`` too, so that each output stays one chain of additions whatever the number of ranks. A part has no weights
until ``load``; ``factory.LayerFactory`` makes parts and remembers the order in which they load.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.layers.base import LayerBackend, LinearLayer, NormLayer, RotaryLayer
from engine_core.layers.weights import Weights
from engine_core.quantization.base import Features, LinearShape, QuantMethod


class Part(ABC):
    """A piece of a model with weights of its own."""

    @abstractmethod
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the checkpoint that it takes."""

    @abstractmethod
    def load(self, weights: Weights) -> None:
        """Take its tensors from ``weights``."""

    @abstractmethod
    def weight_bytes(self, itemsize: int) -> int:
        """Bytes its weights will take, without padding; ``itemsize`` is that of the model's type."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes its weights take once they are loaded, packed and padded."""


class ColumnParallelLinear(Part):
    """y = x · Wᵀ + b."""

    layer: LinearLayer

    def __init__(self, shape: LinearShape, backend: LayerBackend, quant_method: QuantMethod) -> None:
        self.shape = shape
        self._backend = backend
        self._quant_method = quant_method

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return self._quant_method.tensors(self.shape)

    def load(self, weights: Weights) -> None:
        self.layer = self._quant_method.load(self.shape, weights, self._backend)

    def weight_bytes(self, itemsize: int) -> int:
        return self._quant_method.weight_bytes(self.shape, itemsize)

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[M, N] of ``x`` [M, K], plus ``residual`` [M, N], which may be overwritten."""
        return self.layer(x, residual=residual)


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Projections of one input, their outputs side by side: ``gate_proj`` and ``up_proj``."""


class QKVParallelLinear(ColumnParallelLinear):
    """The projections of queries, keys and values, their heads side by side."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[T, Hq + 2 · Hkv, D] of ``x`` [T, K]."""
        assert residual is None
        return self.layer(x).view(x.shape[0], self.shape.outputs.groups, -1)


class ParallelLMHead(ColumnParallelLinear):
    """The output projection, in float32."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, V] float32 of ``hidden`` [R, H]."""
        return self.layer(hidden, dtype=torch.float32)

    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R] int64: ids of the greatest logits, the lowest of equals."""
        return self.layer.argmax(hidden)


class VocabParallelEmbedding(Part):
    """Rows of a table, or of the output projection's weight where the two are tied, without a second copy."""

    def __init__(
        self, name: str, vocab_size: int, hidden_size: int, backend: LayerBackend, tied_to: ParallelLMHead | None
    ) -> None:
        self._name = f"{name}.weight"
        self._shape = (vocab_size, hidden_size)
        self._backend = backend
        self._tied_to = tied_to
        self._table: torch.Tensor | None = None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {} if self._tied_to is not None else {self._name: self._shape}

    def load(self, weights: Weights) -> None:
        if self._tied_to is None:
            table = weights.take(self._name)
            padding = self._backend.padded(self._shape[1]) - self._shape[1]
            self._table = torch.nn.functional.pad(table, (0, padding)) if padding else table.clone()

    def weight_bytes(self, itemsize: int) -> int:
        return sum(math.prod(size) for size in self.tensors().values()) * itemsize

    @property
    def nbytes(self) -> int:
        return 0 if self._table is None else self._table.nbytes

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``token_ids`` [T] int64."""
        if self._table is not None:
            return torch.nn.functional.embedding(token_ids, self._table)
        assert self._tied_to is not None
        return self._tied_to.layer.weight_rows(token_ids)


class RMSNorm(Part):
    """Root mean square normalization (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467)."""

    layer: NormLayer

    def __init__(self, name: str, features: Features, eps: float, backend: LayerBackend) -> None:
        self._name = f"{name}.weight"
        self._features = features
        self._eps = eps
        self._backend = backend

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {self._name: (self._features.count,)}

    def load(self, weights: Weights) -> None:
        weight = weights.take(self._name).view(self._features.groups, self._features.size)
        padding = self._features.padded(self._backend) - self._features.size
        weight = torch.nn.functional.pad(weight, (0, padding)).flatten()
        self.layer = self._backend.rms_norm(weight, self._eps, self._features.count)

    def weight_bytes(self, itemsize: int) -> int:
        return self._features.count * itemsize

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[T, W] of ``x`` [T, W], plus ``residual``."""
        return self.layer(x, residual=residual)

    def in_place(self, x: torch.Tensor) -> None:
        """Normalize the rows of ``x`` [T, W], which may lie apart, in place."""
        self.layer(x, in_place=True)


class RotaryEmbedding(Part):
    """Rotates queries and keys by position, after their normalization per head where ``norms`` names its weights."""

    layer: RotaryLayer

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norms: tuple[str, str] | None,
        eps: float,
        backend: LayerBackend,
    ) -> None:
        self._sizes = (num_heads, num_kv_heads, head_dim)
        self._norms = () if norms is None else tuple(f"{name}.weight" for name in norms)
        self._eps = eps
        self._backend = backend

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self._norms, self._sizes[2:])

    def load(self, weights: Weights) -> None:
        norms = None
        if self._norms:
            query, key = (weights.take(name).clone() for name in self._norms)
            norms = (query, key)
        self.layer = self._backend.rotary(*self._sizes, norms, self._eps)

    def weight_bytes(self, itemsize: int) -> int:
        return len(self._norms) * self._sizes[2] * itemsize

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes


class Attention:
    """Attention of one layer over its KV cache."""

    def __init__(
        self, rotary: RotaryEmbedding, head_dim: int, sliding_window: int | None, backend: AttentionBackend
    ) -> None:
        self._rotary = rotary
        self._sliding_window = sliding_window
        self._scale = head_dim**-0.5
        self._backend = backend

    def __call__(
        self,
        heads: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """[T, Hq · D] of ``heads`` [T, Hq + 2 · Hkv, D], which may be overwritten; writes to ``kv_cache``."""
        return self._backend.forward_heads(
            heads, self._rotary.layer, cos, sin, kv_cache, metadata, self._scale, self._sliding_window
        )
