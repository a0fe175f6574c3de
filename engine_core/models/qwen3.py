"""Qwen3 (dense): queries and keys are normalized per head."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.llama import LlamaConfig, LlamaForCausalLM
from engine_core.models.model_config import common_fields, windows_of_layers


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Biases only where the configuration asks for them; some layers may attend over a sliding window."""

    model_type = "qwen3"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        fields, biased = common_fields(config), config.attention_bias
        windows = windows_of_layers(config, fields["num_layers"])
        return LlamaConfig(**fields | {"sliding_windows": windows}, qkv_bias=biased, o_bias=biased, qk_norm=True)
