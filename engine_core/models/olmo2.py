"""OLMo 2: norms after attention and feed-forward instead of before them, and queries and keys normalized over all
heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import FusedMoE
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, HeadsNormedAttention, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, common_fields


class Olmo2Layer:
    """Attention, then a feed-forward block, each followed by a norm and added to the residual."""

    attention_class: ClassVar[Callable[..., HeadsNormedAttention | SelfAttention]] = HeadsNormedAttention

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)
        self.post_feedforward_layernorm = parts.rms_norm(f"{prefix}.post_feedforward_layernorm", hidden, eps)
        self.self_attn = type(self).attention_class(config, index, f"{prefix}.self_attn", parts)
        self.mlp = self.make_mlp(config, f"{prefix}.mlp", parts)
        self._select_rows = parts.backend.select_rows

    def make_mlp(self, config: ArchitectureConfig, prefix: str, parts: PartFactory) -> GatedMLP | FusedMoE:
        """The feed-forward block."""
        return GatedMLP(config, prefix, parts)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        attended = self.self_attn(hidden, context)
        hidden = self.post_attention_layernorm(attended, residual=self._select_rows(hidden, context.rows))
        return self.post_feedforward_layernorm(self.mlp(hidden, None), residual=hidden)


class Olmo2ForCausalLM(CausalLM):
    """Biases of attention are optional."""

    model_type = "olmo2"
    layer_class = Olmo2Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        biased = config.attention_bias
        return ArchitectureConfig(**common_fields(config), qkv_bias=biased, o_bias=biased)
