"""Gemma 3, its text model: Gemma 2's layers with norms of queries and keys, and other rotations where windows are."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.gemma2 import Gemma2Layer, gemma_fields
from engine_core.models.model_config import ArchitectureConfig


class Gemma3ForCausalLM(CausalLM):
    """Each type of layers has an entry in ``rope_parameters``."""

    model_type = "gemma3_text"
    layer_class = Gemma2Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(**gemma_fields(config), qk_norm=True)
