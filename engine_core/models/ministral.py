"""Ministral: Mistral's layers, some of them over a sliding window."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, windows_of_layers


class MinistralForCausalLM(CausalLM):
    """Without ``layer_types``, the window applies to every layer."""

    model_type = "ministral"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(**common_fields(config, windows=windows_of_layers))
