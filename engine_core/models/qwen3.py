"""Qwen3 (dense): queries and keys are normalized per head."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, windows_of_layers


class Qwen3ForCausalLM(CausalLM):
    """Biases are optional; some layers may have a sliding window."""

    model_type = "qwen3"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, biased = common_fields(config, windows=windows_of_layers), config.attention_bias
        return ArchitectureConfig(**fields, qkv_bias=biased, o_bias=biased, qk_norm=True)
