"""Gemma 3's text model: Gemma 2's layers with QK norms, and other rotations in layers with windows."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.gemma2 import Gemma2Layer, gemma_fields
from engine_core.models.model_config import ArchitectureConfig


class Gemma3ForCausalLM(CausalLM):
    """``rope_parameters`` has an entry per layer type."""

    model_type = "gemma3_text"
    layer_class = Gemma2Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(**gemma_fields(config), qk_norm=True)
