"""Mistral: Llama's shape without biases; early releases attend over a sliding window."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.architecture import ArchitectureConfig, read_shape
from engine_core.models.decoder import DecoderForCausalLM


class MistralForCausalLM(DecoderForCausalLM):
    """A window, where there is one, holds for every layer."""

    model_type = "mistral"

    @classmethod
    def read_shape(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return read_shape(config, sliding_window=config.sliding_window)
