"""Qwen3.5 (dense): Gated DeltaNet in most layers, attention with gated outputs in the others."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.gated_delta_net import GatedDeltaNet, GatedDeltaNetConfig, read_gated_delta_net
from engine_core.models.qwen2_moe import QwenMoeBlock


class QwenHybridLayer:
    """Either of the two, then a dense feed-forward block or experts, each with a norm before it and a residual."""

    linear_class: type[GatedDeltaNet] = GatedDeltaNet

    def __init__(self, config: GatedDeltaNetConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, offset, mixture = config.hidden_size, config.norm_eps, config.norm_offset, config.mixture
        self.mixer: GatedDeltaNet | SelfAttention
        if config.states[index] is None:
            self.mixer = SelfAttention(config, index, f"{prefix}.self_attn", parts, gated=True)
        else:
            self.mixer = self.linear_class(config, index, f"{prefix}.linear_attn", parts)
        self.mlp: GatedMLP | QwenMoeBlock
        if mixture is not None and mixture.is_sparse[index]:
            self.mlp = QwenMoeBlock(config, mixture, f"{prefix}.mlp", parts)
        else:
            self.mlp = GatedMLP(config, f"{prefix}.mlp", parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps, offset)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps, offset)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.mixer(self.input_layernorm(hidden), context, residual=hidden)
        return self.mlp(self.post_attention_layernorm(hidden), residual=hidden)


class QwenHybrid(CausalLM):
    """What Qwen3.5 and Qwen3-Next share; their layers for multi-token prediction are left to ``mtp``."""

    layer_class = QwenHybridLayer
    config: GatedDeltaNetConfig

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or name.startswith("mtp.")


class Qwen3_5ForCausalLM(QwenHybrid):
    """Published inside of a multimodal model; text is rotated by position alone, whatever ``mrope_section`` says."""

    model_type = "qwen3_5_text"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> GatedDeltaNetConfig:
        return GatedDeltaNetConfig(**read_gated_delta_net(config))
