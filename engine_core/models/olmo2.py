"""OLMo 2: norms after attention and feed-forward instead of before them, and queries and keys normalized over all
heads.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention, heads_shape
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, common_fields
from engine_core.weights.features import Features


class Olmo2Layer:
    """Attention, then a feed-forward block, each followed by a norm and added to the residual. One more norm spans all
    query heads, another all key heads.
    """

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, attention = config.hidden_size, config.norm_eps, f"{prefix}.self_attn"
        queries, keys = Features(config.num_heads, config.head_dim), Features(config.num_kv_heads, config.head_dim)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)
        self.post_feedforward_layernorm = parts.rms_norm(f"{prefix}.post_feedforward_layernorm", hidden, eps)
        self.self_attn = SelfAttention(config, index, attention, parts)
        self.q_norm = parts.heads_rms_norm(f"{attention}.q_norm", queries, eps)
        self.k_norm = parts.heads_rms_norm(f"{attention}.k_norm", keys, eps)
        self.mlp = GatedMLP(config, f"{prefix}.mlp", parts)
        own = parts.shares.of_heads(heads_shape(config, index))
        self._queries, self._keys = slice(own.num_heads), slice(own.num_heads, own.num_heads + own.num_kv_heads)
        self._select_rows = parts.backend.select_rows

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        heads = self.self_attn.project(hidden)
        self.q_norm.in_place(heads[:, self._queries].flatten(1))
        self.k_norm.in_place(heads[:, self._keys].flatten(1))
        attended = self.self_attn.attend(heads, context)
        hidden = self.post_attention_layernorm(attended, residual=self._select_rows(hidden, context.rows))
        return self.post_feedforward_layernorm(self.mlp(hidden), residual=hidden)


class Olmo2ForCausalLM(CausalLM):
    """Biases of attention are optional."""

    model_type = "olmo2"
    layer_class = Olmo2Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        biased = config.attention_bias
        return ArchitectureConfig(**common_fields(config), qkv_bias=biased, o_bias=biased)
