"""GLM-4 since 0414: GLM's layers with norms after attention and feed-forward, too."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import LayerContext
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.glm import GlmForCausalLM
from engine_core.models.model_config import ArchitectureConfig


class Glm4Layer:
    """Attention, then a feed-forward block, each between two norms and with a residual."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self.mlp = GatedMLP(config, f"{prefix}.mlp", parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)
        self.post_self_attn_layernorm = parts.rms_norm(f"{prefix}.post_self_attn_layernorm", hidden, eps)
        self.post_mlp_layernorm = parts.rms_norm(f"{prefix}.post_mlp_layernorm", hidden, eps)
        self._select_rows = parts.backend.select_rows

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(hidden), context)
        hidden = self.post_self_attn_layernorm(attended, residual=self._select_rows(hidden, context.rows))
        return self.post_mlp_layernorm(self.mlp(self.post_attention_layernorm(hidden)), residual=hidden)


class Glm4ForCausalLM(CausalLM):
    """The configuration is GLM's."""

    model_type = "glm4"
    layer_class = Glm4Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return GlmForCausalLM.read_config(config)
