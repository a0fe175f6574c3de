"""Qwen2 and Qwen2.5: biases on the query, key and value projections."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.models.architecture import common_fields
from engine_core.models.llama import LlamaConfig, LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The biases are not optional."""

    model_type = "qwen2"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        return LlamaConfig(**common_fields(config), sliding_window=qwen_sliding_window(config), qkv_bias=True)


def qwen_sliding_window(config: PretrainedConfig) -> int | None:
    """The window of the layers that have one; ``sliding_window`` alone says nothing in these families."""
    if "sliding_attention" not in (config.layer_types or ()):
        return None
    if config.sliding_window is None:
        raise CheckpointError("layer_types names sliding_attention, but use_sliding_window and sliding_window do not")
    return int(config.sliding_window)
