"""GLM-4.7-Flash and similar models: DeepSeek V3's layers, with experts where ``mlp_layer_types`` says."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.deepseek_v3 import DeepseekConfig, DeepseekV3ForCausalLM, deepseek_fields, deepseek_mixture
from engine_core.models.model_config import sparse_layers


class Glm4MoeLiteForCausalLM(DeepseekV3ForCausalLM):
    """Dense and sparse layers are chosen by ``mlp_layer_types``."""

    model_type = "glm4_moe_lite"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> DeepseekConfig:
        fields = deepseek_fields(config, interleaved=bool(config.rope_interleave))
        mixture = deepseek_mixture(config, fields, sparse_layers(config, fields["num_layers"]))
        return DeepseekConfig(**fields, mixture=mixture)
