"""dots.llm1: Qwen3's attention; after some dense layers, DeepSeek V3's experts, some of them shared."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import deepseek_mixture
from engine_core.models.glm4_moe import Glm4MoeLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, windows_of_layers


class Dots1ForCausalLM(CausalLM):
    """Biases of attention are optional."""

    model_type = "dots1"
    layer_class = Glm4MoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, biased = common_fields(config, windows=windows_of_layers), config.attention_bias
        mixture = deepseek_mixture(config, fields)
        return ArchitectureConfig(**fields, qkv_bias=biased, o_bias=biased, qk_norm=True, mixture=mixture)
