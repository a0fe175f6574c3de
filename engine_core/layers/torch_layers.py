"""Layers computed by torch and oneDNN: where there are no native kernels, or none for a model's sizes."""

from __future__ import annotations

import torch

from engine_core.kernels.library import Int8Kernels
from engine_core.layers.activation import silu_and_mul
from engine_core.layers.base import EmbeddingLayer, HeadRotation, LayerFactory, LinearLayer, NormLayer
from engine_core.layers.embedding import PackedEmbedding, TiedEmbedding
from engine_core.layers.linear import Linear
from engine_core.layers.norm import HeadNorm, RMSNorm
from engine_core.layers.rotary import rotate
from engine_core.quantization.int8 import Int8Linear


class TorchRotation:
    """Normalization and rotation of queries and keys, computed in float32."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, norms: tuple[torch.Tensor, torch.Tensor] | None, eps: float
    ) -> None:
        """Keep copies of the norms' weights [D]."""
        self._heads = (num_heads, num_kv_heads)
        self._norm = None if norms is None else HeadNorm(norms[0], num_heads, norms[1], num_kv_heads, eps)

    @property
    def nbytes(self) -> int:
        """Memory of the norms' weights."""
        return 0 if self._norm is None else self._norm.nbytes

    def __call__(
        self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of ``heads`` [T, Hq + 2 · Hkv, D]."""
        num_heads, num_kv_heads = self._heads
        queries_and_keys, value = torch.split(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
        if self._norm is not None:
            queries_and_keys = self._norm(queries_and_keys)
        rotated = rotate(queries_and_keys, cos, sin).to(heads.dtype)
        query, key = torch.split(rotated, [num_heads, num_kv_heads], dim=1)
        return query, key, value


class TorchLayerFactory(LayerFactory):
    """Everything by torch; linear layers with 8-bit weights where there are kernels for those."""

    def __init__(self, int8_kernels: Int8Kernels | None = None) -> None:
        """Compute linear layers with ``int8_kernels`` if given."""
        self._int8_kernels = int8_kernels
        self.compiles_per_size = int8_kernels is None

    def numerics(self) -> str:
        return "torch"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearLayer:
        return Linear(weight, bias) if self._int8_kernels is None else Int8Linear(weight, bias, self._int8_kernels)

    def tied_embedding(self, head: LinearLayer, table: torch.Tensor) -> EmbeddingLayer:
        assert isinstance(head, Linear | Int8Linear)
        return TiedEmbedding(head, table) if isinstance(head, Linear) else PackedEmbedding(head)

    def norm(self, weight: torch.Tensor, eps: float) -> NormLayer:
        return RMSNorm(weight, eps)

    def rotation(
        self, num_heads: int, num_kv_heads: int, norms: tuple[torch.Tensor, torch.Tensor] | None, eps: float
    ) -> HeadRotation:
        return TorchRotation(num_heads, num_kv_heads, norms, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(gate_up)
