"""OLMo 2: norms after attention and feed-forward instead of before them, and queries and keys normalized over all
heads.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import AttentionVariant, GatedMLP, LayerNorms, SelfAttention, TransformerLayer
from engine_core.models.causal_lm import CausalLM, DecoderLayer
from engine_core.models.llama import LlamaConfig
from engine_core.models.model_config import ArchitectureConfig, common_fields
from engine_core.quantization.base import Features


class Olmo2ForCausalLM(CausalLM):
    """Biases of attention only where the configuration asks for them."""

    model_type = "olmo2"
    config: LlamaConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        biased = config.attention_bias
        return LlamaConfig(**common_fields(config), qkv_bias=biased, o_bias=biased)

    def make_layer(self, index: int, prefix: str, layers: PartFactory) -> DecoderLayer:
        config, hidden = self.config, Features(1, self.config.hidden_size)
        options = AttentionVariant(qkv_bias=config.qkv_bias, o_bias=config.o_bias)
        norms = LayerNorms(
            after_attention=layers.rms_norm(f"{prefix}.post_attention_layernorm", hidden, config.norm_eps),
            after_mlp=layers.rms_norm(f"{prefix}.post_feedforward_layernorm", hidden, config.norm_eps),
        )
        attention = Olmo2Attention(config, index, f"{prefix}.self_attn", layers, options)
        return TransformerLayer(attention, GatedMLP(config, f"{prefix}.mlp", layers), norms, layers)


class Olmo2Attention(SelfAttention):
    """One norm spans all query heads, another all key heads."""

    def __init__(
        self, config: ArchitectureConfig, index: int, prefix: str, layers: PartFactory, options: AttentionVariant
    ) -> None:
        super().__init__(config, index, prefix, layers, options)
        queries, keys = Features(config.num_heads, config.head_dim), Features(config.num_kv_heads, config.head_dim)
        self.q_norm = layers.rms_norm(f"{prefix}.q_norm", queries, config.norm_eps)
        self.k_norm = layers.rms_norm(f"{prefix}.k_norm", keys, config.norm_eps)
        self._keys = slice(queries.groups, queries.groups + keys.groups)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        heads = super().project(x)
        self.q_norm.in_place(heads[:, : self._keys.start].flatten(1))
        self.k_norm.in_place(heads[:, self._keys].flatten(1))
        return heads
