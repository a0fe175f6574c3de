"""Mistral: Llama's layers without biases; early releases attend over a sliding window."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, uniform_windows


class MistralForCausalLM(CausalLM):
    """A window, if any, applies to every layer."""

    model_type = "mistral"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(**common_fields(config, windows=uniform_windows))
