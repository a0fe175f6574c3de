"""Mistral: Llama's layers without biases; early releases attend over a sliding window."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.llama import LlamaConfig, LlamaForCausalLM
from engine_core.models.model_config import common_fields, uniform_windows


class MistralForCausalLM(LlamaForCausalLM):
    """A window, where there is one, applies to every layer."""

    model_type = "mistral"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        fields = common_fields(config)
        return LlamaConfig(**fields | {"sliding_windows": uniform_windows(config, fields["num_layers"])})
