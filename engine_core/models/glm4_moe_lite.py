"""GLM-4.7-Flash and similar models: DeepSeek V3's layers, with experts where ``mlp_layer_types`` says."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.models.deepseek_v3 import DeepseekConfig, DeepseekV3ForCausalLM, deepseek_fields, deepseek_mixture

_SPARSE, _DENSE = "sparse", "dense"


class Glm4MoeLiteForCausalLM(DeepseekV3ForCausalLM):
    """Dense and sparse layers are chosen by ``mlp_layer_types``."""

    model_type = "glm4_moe_lite"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> DeepseekConfig:
        fields = deepseek_fields(config, interleaved=bool(config.rope_interleave))
        kinds, count = config.mlp_layer_types, fields["num_layers"]
        if len(kinds) != count:
            raise CheckpointError(
                f"mlp_layer_types has {len(kinds)} entries: expected one for each of num_hidden_layers={count}"
            )
        if unknown := sorted(set(kinds) - {_SPARSE, _DENSE}):
            raise UnsupportedModelError(
                f"mlp_layer_types: {', '.join(unknown)} is not supported: expected {_DENSE} or {_SPARSE}"
            )
        mixture = deepseek_mixture(config, fields, is_sparse=tuple(kind == _SPARSE for kind in kinds))
        return DeepseekConfig(**fields, mixture=mixture)
