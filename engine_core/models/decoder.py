"""The decoder-only transformer that Llama, Qwen2, Qwen3 and Mistral share: pre-norm, rotary, gated feed-forward."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import ClassVar, Self

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import AttentionBackend, AttentionMetadata, KVCacheSpec
from engine_core.layers.activation import silu_and_mul
from engine_core.layers.embedding import Embedding, Int8TiedEmbedding, TiedEmbedding, tied_embedding
from engine_core.layers.linear import Linear
from engine_core.layers.linear_choice import LinearFactory
from engine_core.layers.norm import HeadNorm, RMSNorm
from engine_core.layers.quantized import Int8Linear
from engine_core.layers.rotary import Rotary, rotate
from engine_core.loading.weights import Weights
from engine_core.models.base import CausalLM
from engine_core.models.shape import DecoderShape


class DecoderForCausalLM(CausalLM):
    """Embedding, layers, norm and output projection. A family says how its configuration becomes a shape."""

    model_type: ClassVar[str]
    """What config.json calls the family."""

    @classmethod
    @abstractmethod
    def read_shape(cls, config: PretrainedConfig) -> DecoderShape:
        """The shape of the model that ``config`` describes. Raises ``CheckpointError``."""

    def __init__(
        self,
        shape: DecoderShape,
        weights: Weights,
        attention: AttentionBackend,
        dtype: torch.dtype,
        device: torch.device,
        make_linear: LinearFactory,
    ) -> None:
        """Take every tensor of ``shape.tensor_shapes`` from ``weights``, layer by layer."""
        self.vocab_size = shape.vocab_size
        self.hidden_size = shape.hidden_size
        self._shape = shape
        self._dtype = dtype
        self.embedding: Embedding | TiedEmbedding | Int8TiedEmbedding
        table = weights.take("model.embed_tokens.weight")
        if shape.tie_word_embeddings:
            self.lm_head = make_linear(table, None)
            self.embedding = tied_embedding(self.lm_head, table)
        else:
            self.embedding = Embedding(table)
            self.lm_head = make_linear(weights.take("lm_head.weight"), None)
        del table
        self.rotary = Rotary(shape.rope, shape.head_dim, device)
        self.layers = [
            DecoderLayer(shape, weights, f"model.layers.{index}", attention, make_linear)
            for index in range(shape.num_layers)
        ]
        self.norm = RMSNorm(weights.take("model.norm.weight"), shape.rms_norm_eps)

    @property
    def weight_bytes(self) -> int:
        parts = (self.embedding, self.lm_head, self.norm, *self.layers)
        return sum(part.nbytes for part in parts)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        hidden = self.embedding(input_ids)
        cos, sin = self.rotary.angles(positions)
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            hidden = layer(hidden, cos, sin, kv_cache, metadata)
        return self.norm(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden, torch.float32)

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        return KVCacheSpec(
            num_layers=len(self.layers),
            num_kv_heads=self._shape.num_kv_heads,
            head_dim=self._shape.head_dim,
            block_size=block_size,
            dtype=self._dtype,
        )

    def first_layers(self, count: int) -> Self:
        model = copy.copy(self)
        model.layers = self.layers[:count]
        return model


class DecoderLayer:
    """One layer: attention and feed-forward, each added to what went in."""

    def __init__(
        self,
        shape: DecoderShape,
        weights: Weights,
        prefix: str,
        attention: AttentionBackend,
        make_linear: LinearFactory,
    ) -> None:
        """Take the tensors whose names begin with ``prefix``."""
        self.input_norm = RMSNorm(weights.take(f"{prefix}.input_layernorm.weight"), shape.rms_norm_eps)
        self.attention = Attention(shape, weights, f"{prefix}.self_attn", attention, make_linear)
        self.post_attention_norm = RMSNorm(
            weights.take(f"{prefix}.post_attention_layernorm.weight"), shape.rms_norm_eps
        )
        self.mlp = GatedMLP(shape, weights, f"{prefix}.mlp", make_linear)

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
    ) -> torch.Tensor:
        """[T, H] of ``hidden`` [T, H]; writes this step's keys and values to ``kv_cache``."""
        hidden = hidden + self.attention(self.input_norm(hidden), cos, sin, kv_cache, metadata)
        return hidden + self.mlp(self.post_attention_norm(hidden))


class Attention:
    """Rotary attention with one fused projection for queries, keys and values."""

    def __init__(
        self,
        shape: DecoderShape,
        weights: Weights,
        prefix: str,
        backend: AttentionBackend,
        make_linear: LinearFactory,
    ) -> None:
        """Take the tensors whose names begin with ``prefix``."""
        self.qkv_proj = _fused(weights, prefix, ("q_proj", "k_proj", "v_proj"), shape.qkv_bias, make_linear)
        self.o_proj = _fused(weights, prefix, ("o_proj",), shape.o_bias, make_linear)
        self.qk_norm: HeadNorm | None = None
        if shape.qk_norm:
            query_weight = weights.take(f"{prefix}.q_norm.weight").clone()
            key_weight = weights.take(f"{prefix}.k_norm.weight")
            self.qk_norm = HeadNorm(query_weight, shape.num_heads, key_weight, shape.num_kv_heads, shape.rms_norm_eps)
        self._backend = backend
        self._heads = (shape.num_heads, shape.num_kv_heads)
        self._head_dim = shape.head_dim

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.qkv_proj.nbytes + self.o_proj.nbytes + (0 if self.qk_norm is None else self.qk_norm.nbytes)

    def __call__(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """[T, H] of the normalized ``x`` [T, H]."""
        num_heads, num_kv_heads = self._heads
        heads = self.qkv_proj(x).view(x.shape[0], -1, self._head_dim)
        queries_and_keys, value = torch.split(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
        if self.qk_norm is not None:
            queries_and_keys = self.qk_norm(queries_and_keys)
        query, key = torch.split(rotate(queries_and_keys, cos, sin).to(x.dtype), [num_heads, num_kv_heads], dim=1)
        return self.o_proj(self._backend.forward(query, key, value, kv_cache, metadata, self._head_dim**-0.5))


class GatedMLP:
    """down(silu(gate(x)) · up(x)), gate and up in one projection."""

    def __init__(self, shape: DecoderShape, weights: Weights, prefix: str, make_linear: LinearFactory) -> None:
        """Take the tensors whose names begin with ``prefix``."""
        self.gate_up_proj = _fused(weights, prefix, ("gate_proj", "up_proj"), shape.mlp_bias, make_linear)
        self.down_proj = _fused(weights, prefix, ("down_proj",), shape.mlp_bias, make_linear)

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.gate_up_proj.nbytes + self.down_proj.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``x`` [T, H]."""
        return self.down_proj(silu_and_mul(self.gate_up_proj(x)))


def _fused(
    weights: Weights, prefix: str, names: tuple[str, ...], bias: bool, make_linear: LinearFactory
) -> Linear | Int8Linear:
    """One projection made of those that the checkpoint has apart, their outputs side by side."""
    offset = weights.take(*(f"{prefix}.{name}.bias" for name in names)).clone() if bias else None
    return make_linear(weights.take(*(f"{prefix}.{name}.weight" for name in names)), offset)
