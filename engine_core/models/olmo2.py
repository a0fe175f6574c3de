"""OLMo 2: norms after attention and feed-forward instead of before them, and queries and keys normalized over all
heads.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import AttentionMetadata
from engine_core.layers.factory import LayerFactory
from engine_core.models.architecture import common_fields
from engine_core.models.base import CausalLM, DecoderLayer
from engine_core.models.llama import LlamaConfig, LlamaMLP
from engine_core.quantization.base import Features


class Olmo2ForCausalLM(CausalLM):
    """Biases of attention only where the configuration asks for them."""

    model_type = "olmo2"
    config: LlamaConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        biased = config.attention_bias
        return LlamaConfig(**common_fields(config), qkv_bias=biased, o_bias=biased)

    def make_layer(self, index: int, prefix: str, layers: LayerFactory) -> DecoderLayer:
        return Olmo2DecoderLayer(self.config, prefix, layers)


class Olmo2DecoderLayer:
    """As ``DecoderLayer`` says."""

    def __init__(self, config: LlamaConfig, prefix: str, layers: LayerFactory) -> None:
        hidden, eps = Features(1, config.hidden_size), config.rms_norm_eps
        self.self_attn = Olmo2Attention(config, f"{prefix}.self_attn", layers)
        self.post_attention_layernorm = layers.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)
        self.mlp = LlamaMLP(config, f"{prefix}.mlp", layers)
        self.post_feedforward_layernorm = layers.rms_norm(f"{prefix}.post_feedforward_layernorm", hidden, eps)
        self._select_rows = layers.select_rows

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        attended = self.self_attn(hidden, cos, sin, kv_cache, metadata, rows)
        residual = hidden if rows is None else self._select_rows(hidden, rows)
        hidden = self.post_attention_layernorm(attended, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden, None), hidden)


class Olmo2Attention:
    """Rotary attention; one norm spans all query heads, another all key heads."""

    def __init__(self, config: LlamaConfig, prefix: str, layers: LayerFactory) -> None:
        queries, keys = Features(config.num_heads, config.head_dim), Features(config.num_kv_heads, config.head_dim)
        self.qkv_proj = layers.qkv_parallel_linear(
            prefix, config.hidden_size, queries.groups, keys.groups, config.head_dim, config.qkv_bias
        )
        self.q_norm = layers.rms_norm(f"{prefix}.q_norm", queries, config.rms_norm_eps)
        self.k_norm = layers.rms_norm(f"{prefix}.k_norm", keys, config.rms_norm_eps)
        self.o_proj = layers.column_parallel_linear(f"{prefix}.o_proj", queries, config.hidden_size, config.o_bias)
        self.attn = layers.attention(queries.groups, keys.groups, config.head_dim)
        self._num_heads, self._num_kv_heads = queries.groups, keys.groups
        self._select_rows = layers.select_rows

    def __call__(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] of ``rows``, or [T, H] of all: the attention of ``x`` [T, H]."""
        heads = self.qkv_proj(x)
        queries_end = self._num_heads
        self.q_norm.in_place(heads[:, :queries_end].flatten(1))
        self.k_norm.in_place(heads[:, queries_end : queries_end + self._num_kv_heads].flatten(1))
        attended = self.attn(heads, cos, sin, kv_cache, metadata)
        return self.o_proj(attended if rows is None else self._select_rows(attended, rows))
