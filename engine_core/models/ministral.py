"""Ministral: Mistral's layers, some of them over a sliding window."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.llama import LlamaConfig, LlamaForCausalLM
from engine_core.models.model_config import common_fields, windows_of_layers


class MinistralForCausalLM(LlamaForCausalLM):
    """Without ``layer_types``, a window applies to every layer."""

    model_type = "ministral"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        fields = common_fields(config)
        return LlamaConfig(**fields | {"sliding_windows": windows_of_layers(config, fields["num_layers"])})
