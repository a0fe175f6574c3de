"""Llama 2 and 3, the many checkpoints in their format, and the layers that Mistral, Qwen2 and Qwen3 share with it.

A layer is pre-norm, rotary, with a gated feed-forward block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import AttentionMetadata
from engine_core.layers.factory import LayerFactory
from engine_core.models.architecture import ArchitectureConfig, common_fields
from engine_core.models.base import CausalLM, DecoderLayer
from engine_core.quantization.base import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ArchitectureConfig):
    """Switches in which these families differ."""

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalized per head before rotation."""


class LlamaForCausalLM(CausalLM):
    """Biases only where the configuration asks for them."""

    model_type = "llama"
    config: LlamaConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        biased = config.attention_bias
        return LlamaConfig(**common_fields(config), qkv_bias=biased, o_bias=biased, mlp_bias=config.mlp_bias)

    def make_layer(self, index: int, prefix: str, layers: LayerFactory) -> DecoderLayer:
        return LlamaDecoderLayer(self.config, index, prefix, layers)


class LlamaDecoderLayer:
    """As ``DecoderLayer`` says."""

    def __init__(self, config: LlamaConfig, index: int, prefix: str, layers: LayerFactory) -> None:
        hidden = Features(1, config.hidden_size)
        self.input_layernorm = layers.rms_norm(f"{prefix}.input_layernorm", hidden, config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, config.sliding_windows[index], f"{prefix}.self_attn", layers)
        self.post_attention_layernorm = layers.rms_norm(
            f"{prefix}.post_attention_layernorm", hidden, config.rms_norm_eps
        )
        self.mlp = LlamaMLP(config, f"{prefix}.mlp", layers)

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), hidden, cos, sin, kv_cache, metadata, rows)
        return self.mlp(self.post_attention_layernorm(hidden), hidden)


class LlamaAttention:
    """Rotary attention with one fused projection for queries, keys and values."""

    def __init__(self, config: LlamaConfig, sliding_window: int | None, prefix: str, layers: LayerFactory) -> None:
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.qkv_proj = layers.qkv_parallel_linear(
            prefix, config.hidden_size, heads, kv_heads, head_dim, config.qkv_bias
        )
        self.o_proj = layers.column_parallel_linear(
            f"{prefix}.o_proj", Features(heads, head_dim), config.hidden_size, config.o_bias
        )
        norms = (f"{prefix}.q_norm", f"{prefix}.k_norm") if config.qk_norm else None
        self.attn = layers.attention(heads, kv_heads, head_dim, sliding_window, norms, config.rms_norm_eps)
        self._select_rows = layers.select_rows

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
        """[R, H] of ``rows``, or [T, H] of all: ``residual`` plus the attention of the normalized ``x`` [T, H]."""
        attended = self.attn(self.qkv_proj(x), cos, sin, kv_cache, metadata)
        if rows is not None:
            attended, residual = self._select_rows(attended, rows), self._select_rows(residual, rows)
        return self.o_proj(attended, residual)


class LlamaMLP:
    """down(silu(gate(x)) · up(x)) (SwiGLU, https://arxiv.org/abs/2002.05202), gate and up in one projection."""

    def __init__(self, config: LlamaConfig, prefix: str, layers: LayerFactory) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up_proj = layers.merged_column_parallel_linear(
            prefix, ("gate_proj", "up_proj"), hidden, inner, config.mlp_bias
        )
        self.down_proj = layers.column_parallel_linear(
            f"{prefix}.down_proj", Features(1, inner), hidden, config.mlp_bias
        )
        self._silu_and_mul = layers.silu_and_mul

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """[T, H]: the output for ``x`` [T, H], plus ``residual`` if given."""
        return self.down_proj(self._silu_and_mul(self.gate_up_proj(x)), residual)
