"""GLM-4.5 and 4.6: partial rotation; after some dense layers, experts, one of them shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import (
    DEEPSEEK_ONLY,
    MoeNames,
    check_only,
    deepseek_mixture,
    deepseek_mlp,
    is_unused,
)
from engine_core.models.model_config import ArchitectureConfig, common_fields


class Glm4MoeLayer:
    """Attention, then a dense feed-forward block or experts, each with a norm before it and a residual."""

    names: ClassVar[MoeNames] = MoeNames()
    """Those of the experts."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self.mlp = deepseek_mlp(config, index, f"{prefix}.mlp", parts, type(self).names)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.mlp(self.post_attention_layernorm(hidden), residual=hidden)


class Glm4MoeForCausalLM(CausalLM):
    """Experts as in DeepSeek V3; layers for multi-token prediction are left to ``mtp``."""

    model_type = "glm4_moe"
    layer_class = Glm4MoeLayer

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_only(raw, DEEPSEEK_ONLY)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields = common_fields(config, partial_rotary=True)
        mixture = deepseek_mixture(config, fields)
        return ArchitectureConfig(**fields, qkv_bias=config.attention_bias, qk_norm=config.use_qk_norm, mixture=mixture)

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or is_unused(name, self.config)
