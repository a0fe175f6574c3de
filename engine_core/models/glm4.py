"""GLM-4 since 0414: GLM's layers with norms after attention and feed-forward, too."""

from __future__ import annotations

from dataclasses import replace

from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import LayerNorms
from engine_core.models.glm import GlmForCausalLM
from engine_core.quantization.base import Features


class Glm4ForCausalLM(GlmForCausalLM):
    """The configuration is GLM's."""

    model_type = "glm4"

    def layer_norms(self, prefix: str, layers: PartFactory) -> LayerNorms:
        hidden, eps = Features(1, self.config.hidden_size), self.config.norm_eps
        return replace(
            super().layer_norms(prefix, layers),
            after_attention=layers.rms_norm(f"{prefix}.post_self_attn_layernorm", hidden, eps),
            after_mlp=layers.rms_norm(f"{prefix}.post_mlp_layernorm", hidden, eps),
        )
