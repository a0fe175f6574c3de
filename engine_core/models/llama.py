"""Llama 2 and 3, and the many checkpoints in their format: pre-norm, rotary embeddings, a gated feed-forward block."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, common_fields


class LlamaLayer:
    """Attention, then a feed-forward block, each with a norm before it and a residual."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, offset = config.hidden_size, config.norm_eps, config.norm_offset
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self.mlp = GatedMLP(config, f"{prefix}.mlp", parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps, offset)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps, offset)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.mlp(self.post_attention_layernorm(hidden), residual=hidden)


class LlamaForCausalLM(CausalLM):
    """Biases are optional."""

    model_type = "llama"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        biased = config.attention_bias
        return ArchitectureConfig(**common_fields(config), qkv_bias=biased, o_bias=biased, mlp_bias=config.mlp_bias)
