"""Qwen3 (dense): queries and keys are normalized per head."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.architecture import common_fields
from engine_core.models.llama import LlamaConfig, LlamaForCausalLM
from engine_core.models.qwen2 import qwen_sliding_window


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Biases only where the configuration asks for them."""

    model_type = "qwen3"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        biased = config.attention_bias
        return LlamaConfig(
            **common_fields(config),
            sliding_window=qwen_sliding_window(config),
            qkv_bias=biased,
            o_bias=biased,
            qk_norm=True,
        )
