"""Solar Open: GLM-4.5's layers without norms of heads, all with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import DEEPSEEK_ONLY, check_only, deepseek_mixture
from engine_core.models.glm4_moe import Glm4MoeLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields


class SolarOpenForCausalLM(CausalLM):
    """Optional biases on the QKV projections only."""

    model_type = "solar_open"
    layer_class = Glm4MoeLayer

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_only(raw, DEEPSEEK_ONLY)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields = common_fields(config, intermediate_size="moe_intermediate_size")
        mixture = deepseek_mixture(config, fields, is_sparse=(True,) * fields["num_layers"])
        return ArchitectureConfig(**fields, qkv_bias=config.attention_bias, mixture=mixture)
