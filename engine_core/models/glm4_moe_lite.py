"""GLM-4.7-Flash and its like: DeepSeek V3's layers, of which ``mlp_layer_types`` says where experts are."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.models.deepseek_v3 import DeepseekV3ForCausalLM, deepseek_mixture
from engine_core.models.latent import LatentConfig, latent_fields

_SPARSE, _DENSE = "sparse", "dense"


class Glm4MoeLiteForCausalLM(DeepseekV3ForCausalLM):
    """As DeepSeek V3 otherwise."""

    model_type = "glm4_moe_lite"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LatentConfig:
        fields = latent_fields(config, interleaved=bool(config.rope_interleave))
        kinds, count = config.mlp_layer_types, fields["num_layers"]
        if len(kinds) != count:
            raise CheckpointError(f"mlp_layer_types names {len(kinds)} layers, num_hidden_layers is {count}")
        if unknown := sorted(set(kinds) - {_SPARSE, _DENSE}):
            raise UnsupportedModelError(f"mlp_layer_types names {', '.join(unknown)}; known are {_DENSE}, {_SPARSE}")
        mixture = deepseek_mixture(config, fields, is_sparse=tuple(kind == _SPARSE for kind in kinds))
        return LatentConfig(**fields, mixture=mixture)
