"""Ministral 3, its text model: Mistral's layers with queries that grow with their position, against flat attention over
long contexts.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.llama import LlamaConfig, LlamaForCausalLM
from engine_core.models.model_config import common_fields, uniform_windows


class Ministral3ForCausalLM(LlamaForCausalLM):
    """A window, where there is one, applies to every layer."""

    model_type = "ministral3"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        fields = common_fields(config, query_scaling=True)
        return LlamaConfig(**fields | {"sliding_windows": uniform_windows(config, fields["num_layers"])})
