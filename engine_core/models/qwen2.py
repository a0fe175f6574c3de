"""Qwen2 and Qwen2.5: biases on the QKV projections; some layers may have a sliding window."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, windows_of_layers


class Qwen2ForCausalLM(CausalLM):
    """The biases are not optional."""

    model_type = "qwen2"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(**common_fields(config, windows=windows_of_layers), qkv_bias=True)
