"""Qwen3 (dense): queries and keys are normalized per head."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.architecture import ArchitectureConfig, read_shape
from engine_core.models.decoder import DecoderForCausalLM
from engine_core.models.qwen2 import qwen_sliding_window


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Biases only where the configuration asks for them."""

    model_type = "qwen3"

    @classmethod
    def read_shape(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return read_shape(
            config,
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            qk_norm=True,
            sliding_window=qwen_sliding_window(config),
        )
