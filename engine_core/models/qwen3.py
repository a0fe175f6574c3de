"""Qwen3 (dense): queries and keys are normalized per head."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.llama import LlamaConfig, LlamaForCausalLM
from engine_core.models.qwen2 import common_fields_of_qwen


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Biases only where the configuration asks for them."""

    model_type = "qwen3"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        biased = config.attention_bias
        return LlamaConfig(**common_fields_of_qwen(config), qkv_bias=biased, o_bias=biased, qk_norm=True)
