"""Attention over heads, after their normalization and rotation. ``mla`` attends over latents."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine_core.attention.base import AttentionBackend, AttentionOptions, RotaryOp
from engine_core.forward_context import LayerContext
from engine_core.layers.part import Part
from engine_core.ops.base import HeadNorms, HeadsShape, OpsBackend
from engine_core.weights.source import TensorRows, Weights


@dataclass(frozen=True, slots=True)
class HeadNormNames:
    """Tensors of the RMS norms of heads; None: weights of one."""

    query: str | None
    key: str | None
    eps: float
    offset: float = 0.0
    """Added to the weights."""
    of_values: bool = False
    """Whether values are also normalized, with weights of one."""


class Attention(Part):
    """Attention of one layer over its KV cache."""

    rotary: RotaryOp

    def __init__(
        self,
        shape: HeadsShape,
        options: AttentionOptions,
        norms: HeadNormNames | None,
        sinks: TensorRows | None,
        ops: OpsBackend,
        attention: AttentionBackend,
        device: torch.device,
    ) -> None:
        """``norms``: tensors for the normalization of heads. ``sinks``: rows of a tensor [heads of all ranks]."""
        self._shape = shape
        self._options = options
        self._norms = norms
        self._sinks = sinks
        self._ops = ops
        self._attention = attention
        self._device = device

    def tensors(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(self._norm_names(), (self._shape.head_dim,))
        return shapes if self._sinks is None else shapes | {self._sinks.name: (self._sinks.count,)}

    def _norm_names(self) -> list[str]:
        names = () if self._norms is None else (self._norms.query, self._norms.key)
        return [f"{name}.weight" for name in names if name is not None]

    def load(self, weights: Weights) -> None:
        norms = None
        if self._norms is not None:
            ones, offset = torch.ones(self._shape.head_dim, device=self._device), self._norms.offset
            query, key = (
                ones if name is None else weights.take(f"{name}.weight").float() + offset
                for name in (self._norms.query, self._norms.key)
            )
            norms = HeadNorms(query, key, ones if self._norms.of_values else None, self._norms.eps)
        self.rotary = self._ops.rotary(self._shape, norms)
        if self._sinks is not None:
            logits = weights.take(self._sinks).to(torch.float32, copy=True)
            self._options = replace(self._options, sinks=logits)

    @property
    def nbytes(self) -> int:
        sinks = self._options.sinks
        return self.rotary.nbytes + (0 if sinks is None else sinks.nbytes)

    def __call__(self, heads: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """[T, Hq · D] from ``heads`` [T, Hq + 2 · Hkv, D], which may be overwritten; writes to the layer's cache.

        With queries alone (Hkv = 0), nothing is written: another layer has done it.
        """
        assert context.kv_cache is not None
        assert context.metadata is not None
        return self._attention.forward_heads(
            heads, self.rotary, context.angles, context.kv_cache, context.metadata, self._options
        )
