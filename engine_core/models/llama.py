"""Llama 2 and 3, and the many checkpoints in their format: pre-norm, rotary, a gated feed-forward block."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from engine_core.layers.part_factory import PartFactory
from engine_core.layers.parts import HeadNormNames
from engine_core.models.blocks import (
    AttentionVariant,
    FeedForward,
    GatedMLP,
    SelfAttention,
    TransformerLayer,
    pre_norms,
)
from engine_core.models.causal_lm import CausalLM, DecoderLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig(ArchitectureConfig):
    """Switches in which families with Llama's layers differ."""

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

    def make_layer(self, index: int, prefix: str, layers: PartFactory) -> DecoderLayer:
        config, attention = self.config, f"{prefix}.self_attn"
        norms = HeadNormNames(f"{attention}.q_norm", f"{attention}.k_norm", config.norm_eps) if config.qk_norm else None
        options = AttentionVariant(qkv_bias=config.qkv_bias, o_bias=config.o_bias, head_norms=norms)
        return TransformerLayer(
            SelfAttention(config, index, attention, layers, options),
            self.make_mlp(index, prefix, layers),
            pre_norms(prefix, config, layers),
            layers,
        )

    def make_mlp(self, index: int, prefix: str, layers: PartFactory) -> FeedForward:
        """The feed-forward block of layer ``index``."""
        return GatedMLP(self.config, f"{prefix}.mlp", layers, bias=self.config.mlp_bias)
