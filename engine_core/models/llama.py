"""Llama 2 and 3, and the many checkpoints in their format."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.architecture import ArchitectureConfig, read_shape
from engine_core.models.decoder import DecoderForCausalLM


class LlamaForCausalLM(DecoderForCausalLM):
    """Biases only where the configuration asks for them."""

    model_type = "llama"

    @classmethod
    def read_shape(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return read_shape(
            config, qkv_bias=config.attention_bias, o_bias=config.attention_bias, mlp_bias=config.mlp_bias
        )
