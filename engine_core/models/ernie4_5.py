"""ERNIE 4.5 (dense): Llama's layers, with rotation of neighbouring elements as pairs."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields


class Ernie4_5ForCausalLM(CausalLM):
    """All linear layers have biases, or none."""

    model_type = "ernie4_5"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        biased = config.use_bias
        fields = common_fields(config, interleaved=True)
        return ArchitectureConfig(**fields, qkv_bias=biased, o_bias=biased, mlp_bias=biased)
