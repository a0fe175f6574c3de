"""Gemma 3, its text model: Gemma 2's layers with norms of queries and keys, and other rotations where windows are."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.gemma2 import Gemma2ForCausalLM, GemmaConfig, gemma_fields


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Each type of layers has an entry in ``rope_parameters``."""

    model_type = "gemma3_text"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> GemmaConfig:
        return GemmaConfig(**gemma_fields(config), qk_norm=True)
