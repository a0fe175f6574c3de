"""Qwen2 and Qwen2.5: biases on the query, key and value projections; some layers may attend over a sliding window."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.models.architecture import common_fields, sliding_window
from engine_core.models.llama import LlamaConfig, LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The biases are not optional."""

    model_type = "qwen2"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        return LlamaConfig(**common_fields_of_qwen(config), qkv_bias=True)


def common_fields_of_qwen(config: PretrainedConfig) -> dict[str, Any]:
    """As ``common_fields``, with the windows of the layers that ``layer_types`` gives one."""
    fields, kinds = common_fields(config), config.layer_types
    if len(kinds) != fields["num_layers"]:
        raise CheckpointError(f"layer_types names {len(kinds)} layers, num_hidden_layers is {fields['num_layers']}")
    windows = {"full_attention": None, "sliding_attention": sliding_window(config)}
    if unknown := set(kinds) - set(windows):
        raise UnsupportedModelError(f"layer_types names {', '.join(sorted(unknown))}; known are {', '.join(windows)}")
    if "sliding_attention" in kinds and windows["sliding_attention"] is None:
        missing = "sliding_window to a number of tokens" if config.use_sliding_window else "use_sliding_window to true"
        raise CheckpointError(f"layer_types names sliding_attention, which has no window: set {missing}")
    return fields | {"sliding_windows": tuple(windows[kind] for kind in kinds)}
