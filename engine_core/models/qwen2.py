"""Qwen2 and Qwen2.5: biases on the query, key and value projections; some layers may attend over a sliding window."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.llama import LlamaConfig, LlamaForCausalLM
from engine_core.models.model_config import common_fields, windows_of_layers


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The biases are not optional."""

    model_type = "qwen2"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        fields = common_fields(config)
        windows = windows_of_layers(config, fields["num_layers"])
        return LlamaConfig(**fields | {"sliding_windows": windows}, qkv_bias=True)
