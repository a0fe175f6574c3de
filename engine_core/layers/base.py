"""What a model's layers are made of, whatever computes them.

Symbols in shapes: M rows, K inputs, N outputs, T rows of a step, R of them that are wanted, D head size,
V vocabulary size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch

from engine_core.attention.base import AttentionMetadata


class LinearLayer(Protocol):
    """y = x · Wᵀ + b."""

    in_features: int
    out_features: int

    @property
    def nbytes(self) -> int:
        """Memory of the weight and the bias."""

    def __call__(
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """[M, N] of ``x`` [M, K], plus ``residual`` [M, N]; in the type of ``x``, or in float32 if ``dtype`` is.

        ``residual`` may be overwritten.
        """


class EmbeddingLayer(Protocol):
    """Rows of a table."""

    @property
    def nbytes(self) -> int:
        """Memory that it does not share with the output projection."""

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``token_ids`` [T] int64."""


class NormLayer(Protocol):
    """x / √(mean(x²) + ε) · w over the last dimension."""

    @property
    def nbytes(self) -> int:
        """Memory of the weight."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``x`` [T, H]."""


class HeadRotation(Protocol):
    """Rotary embedding of queries and keys, with their normalization before it where a model has one."""

    @property
    def nbytes(self) -> int:
        """Memory of the norms' weights."""

    def __call__(
        self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [T, Hq, D], keys and values [T, Hkv, D] of ``heads`` [T, Hq + 2 · Hkv, D], which may be overwritten.

        ``cos`` and ``sin`` are [T, 1, D / 2] float32.
        """


class DecoderStack(Protocol):
    """What is between a model's embedding and its head."""

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] of the ``rows`` [R] int64 of ``hidden`` [T, H], or [T, H] of all; valid until the next call.

        ``cos`` and ``sin`` are [T, 1, D / 2] float32; ``kv_caches`` has one cache per layer.
        """


class LayerFactory(ABC):
    """Makes the layers of a model. Whoever passes a weight lets go of it: what is needed is copied."""

    compiles_per_size: bool
    """Whether steps of a size that was not seen before make kernels first, which take time and memory: oneDNN's do."""

    @abstractmethod
    def numerics(self) -> str:
        """What decides a result's bits, beside the processor's instruction set and the builds of torch and numpy."""

    @abstractmethod
    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearLayer:
        """A linear layer of ``weight`` [N, K] and ``bias`` [N]."""

    @abstractmethod
    def tied_embedding(self, head: LinearLayer, table: torch.Tensor) -> EmbeddingLayer:
        """The embedding that shares the memory of ``head``, which was made from ``table`` [V, H]."""

    @abstractmethod
    def norm(self, weight: torch.Tensor, eps: float) -> NormLayer:
        """Normalization with ``weight`` [H]."""

    @abstractmethod
    def rotation(
        self, num_heads: int, num_kv_heads: int, norms: tuple[torch.Tensor, torch.Tensor] | None, eps: float
    ) -> HeadRotation:
        """Rotation of so many heads; ``norms`` are the weights [D] of the norms of queries and of keys."""

    @abstractmethod
    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) · up [T, I] of ``gate_up`` [T, 2 · I]."""

    def select_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``rows`` [R] int64 of ``x`` [T, N]."""
        return x.index_select(0, rows)

    def argmax(self, head: LinearLayer, hidden: torch.Tensor) -> torch.Tensor:
        """[M] int64: where each row that ``head`` makes of ``hidden`` [M, K] is greatest, in float32; the first of
        equals.
        """
        outputs = head(hidden, dtype=torch.float32)
        # On CPU numpy's is vectorized and torch's is not: 9 against 126 µs for a row of 151,936.
        return torch.from_numpy(outputs.numpy().argmax(axis=1)) if outputs.is_cpu else outputs.argmax(1)

    def captured(self, stack: DecoderStack) -> DecoderStack:
        """What does the same as ``stack``, which was made of these layers, with less to do between them."""
        return stack
