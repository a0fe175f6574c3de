"""Ministral 3's text model: Mistral's layers with queries that grow with position, against flat attention over long
contexts.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, uniform_windows


class Ministral3ForCausalLM(CausalLM):
    """A window, if any, applies to every layer."""

    model_type = "ministral3"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(**common_fields(config, query_scaling=True, windows=uniform_windows))
