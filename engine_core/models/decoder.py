"""The decoder-only transformer that Llama, Qwen2, Qwen3 and Mistral share: pre-norm, rotary, gated feed-forward."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import AttentionBackend, AttentionMetadata, KVCacheSpec
from engine_core.layers.base import EmbeddingLayer, LayerFactory, LinearLayer, NormLayer
from engine_core.layers.embedding import Embedding
from engine_core.layers.rotary import Rotary
from engine_core.model_loader.weights import Weights
from engine_core.models.architecture import ArchitectureConfig
from engine_core.models.base import CausalLM


class DecoderForCausalLM(CausalLM):
    """Embedding, layers, norm and output projection. A family says how its configuration becomes a shape."""

    model_type: ClassVar[str]
    """What config.json calls the family."""

    @classmethod
    @abstractmethod
    def read_shape(cls, config: PretrainedConfig) -> ArchitectureConfig:
        """The shape of the model that ``config`` describes. Raises ``CheckpointError``."""

    def __init__(
        self,
        shape: ArchitectureConfig,
        weights: Weights,
        attention: AttentionBackend,
        dtype: torch.dtype,
        device: torch.device,
        layers: LayerFactory,
        max_model_len: int,
    ) -> None:
        """Take every tensor of ``shape.tensor_shapes`` from ``weights``, layer by layer."""
        self.vocab_size = shape.vocab_size
        self.hidden_size = shape.hidden_size
        self._shape = shape
        self._dtype = dtype
        self.embedding: EmbeddingLayer
        table = weights.take("model.embed_tokens.weight")
        if shape.tie_word_embeddings:
            self.lm_head = layers.linear(table, None)
            self.embedding = layers.tied_embedding(self.lm_head, table)
        else:
            self.embedding = Embedding(table)
            self.lm_head = layers.linear(weights.take("lm_head.weight"), None)
        del table
        self.rotary = Rotary(shape.rope, shape.head_dim, max_model_len, device)
        self._layers = layers
        self._set_stack(
            LayersAndNorm(
                [
                    DecoderLayer(shape, weights, f"model.layers.{index}", attention, layers)
                    for index in range(shape.num_layers)
                ],
                layers.norm(weights.take("model.norm.weight"), shape.rms_norm_eps),
            )
        )

    @property
    def weight_bytes(self) -> int:
        return self.embedding.nbytes + self.lm_head.nbytes + self._stack.nbytes

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        cos, sin = self.rotary.angles(positions)
        return self._run_stack(self.embedding(input_ids), cos, sin, kv_caches, metadata, rows)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden, dtype=torch.float32)

    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._layers.argmax(self.lm_head, hidden)

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        return KVCacheSpec(
            num_layers=len(self._stack.layers),
            num_kv_heads=self._shape.num_kv_heads,
            head_dim=self._shape.head_dim,
            block_size=block_size,
            dtype=self._dtype,
        )

    def first_layers(self, count: int) -> Self:
        model = copy.copy(self)
        model._set_stack(LayersAndNorm(self._stack.layers[:count], self._stack.norm))
        return model

    def _set_stack(self, stack: LayersAndNorm) -> None:
        self._stack = stack
        self._run_stack = self._layers.captured(stack)


class LayersAndNorm:
    """All layers, and the norm behind them."""

    def __init__(self, layers: Sequence[DecoderLayer], norm: NormLayer) -> None:
        """To be called in that order."""
        self.layers = layers
        self.norm = norm

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.norm.nbytes + sum(layer.nbytes for layer in self.layers)

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] of the ``rows`` [R] of ``hidden`` [T, H], or [T, H] of all."""
        for number, (layer, kv_cache) in enumerate(zip(self.layers, kv_caches, strict=True), 1):
            last = number == len(self.layers)  # behind its attention, rows that nobody wants are of no use to others
            hidden = layer(hidden, cos, sin, kv_cache, metadata, rows if last else None)
        return self.norm(hidden)


class DecoderLayer:
    """One layer: attention and feed-forward, each added to what went in."""

    def __init__(
        self,
        shape: ArchitectureConfig,
        weights: Weights,
        prefix: str,
        attention: AttentionBackend,
        layers: LayerFactory,
    ) -> None:
        """Take the tensors whose names begin with ``prefix``."""
        self.input_norm = layers.norm(weights.take(f"{prefix}.input_layernorm.weight"), shape.rms_norm_eps)
        self.attention = Attention(shape, weights, f"{prefix}.self_attn", attention, layers)
        self.post_attention_norm = layers.norm(
            weights.take(f"{prefix}.post_attention_layernorm.weight"), shape.rms_norm_eps
        )
        self.mlp = GatedMLP(shape, weights, f"{prefix}.mlp", layers)

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.input_norm.nbytes + self.attention.nbytes + self.post_attention_norm.nbytes + self.mlp.nbytes

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] of the ``rows`` [R] of ``hidden`` [T, H], or [T, H] of all; writes keys and values to ``kv_cache``."""
        hidden = self.attention(self.input_norm(hidden), hidden, cos, sin, kv_cache, metadata, rows)
        return self.mlp(self.post_attention_norm(hidden), hidden)


class Attention:
    """Rotary attention with one fused projection for queries, keys and values."""

    def __init__(
        self,
        shape: ArchitectureConfig,
        weights: Weights,
        prefix: str,
        backend: AttentionBackend,
        layers: LayerFactory,
    ) -> None:
        """Take the tensors whose names begin with ``prefix``."""
        self.qkv_proj = _fused(weights, prefix, ("q_proj", "k_proj", "v_proj"), shape.qkv_bias, layers)
        self.o_proj = _fused(weights, prefix, ("o_proj",), shape.o_bias, layers)
        norms: tuple[torch.Tensor, torch.Tensor] | None = None
        if shape.qk_norm:
            query_weight = weights.take(f"{prefix}.q_norm.weight").clone()
            norms = (query_weight, weights.take(f"{prefix}.k_norm.weight"))
        self.rotation = layers.rotation(shape.num_heads, shape.num_kv_heads, norms, shape.rms_norm_eps)
        self._select_rows = layers.select_rows
        self._backend = backend
        self._head_dim = shape.head_dim

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.qkv_proj.nbytes + self.o_proj.nbytes + self.rotation.nbytes

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] or [T, H]: ``residual`` and the attention of ``x`` [T, H], which is normalized; of ``rows`` or all."""
        heads = self.qkv_proj(x).view(x.shape[0], -1, self._head_dim)
        scale = self._head_dim**-0.5
        attended = self._backend.forward_heads(heads, self.rotation, cos, sin, kv_cache, metadata, scale)
        if rows is not None:
            attended, residual = self._select_rows(attended, rows), self._select_rows(residual, rows)
        return self.o_proj(attended, residual=residual)


class GatedMLP:
    """down(silu(gate(x)) · up(x)), gate and up in one projection."""

    def __init__(self, shape: ArchitectureConfig, weights: Weights, prefix: str, layers: LayerFactory) -> None:
        """Take the tensors whose names begin with ``prefix``."""
        self.gate_up_proj = _fused(weights, prefix, ("gate_proj", "up_proj"), shape.mlp_bias, layers)
        self.down_proj = _fused(weights, prefix, ("down_proj",), shape.mlp_bias, layers)
        self._activate = layers.silu_and_mul

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.gate_up_proj.nbytes + self.down_proj.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[T, H]: ``residual`` and what becomes of ``x``, which is normalized."""
        return self.down_proj(self._activate(self.gate_up_proj(x)), residual=residual)


def _fused(weights: Weights, prefix: str, names: tuple[str, ...], bias: bool, layers: LayerFactory) -> LinearLayer:
    """One projection made of those that the checkpoint has apart, their outputs side by side."""
    offset = weights.take(*(f"{prefix}.{name}.bias" for name in names)).clone() if bias else None
    return layers.linear(weights.take(*(f"{prefix}.{name}.weight" for name in names)), offset)
