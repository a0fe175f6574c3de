"""Granite 3: Llama's layers with multipliers of embeddings, attention, residuals and logits."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.llama import LlamaLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, positive_number


class GraniteForCausalLM(CausalLM):
    """Biases are optional."""

    model_type = "granite"
    layer_class = LlamaLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return ArchitectureConfig(**granite_fields(config), mlp_bias=config.mlp_bias)


def granite_fields(config: PretrainedConfig) -> dict[str, Any]:
    """The fields that Granite shares with its mixtures of experts. Raises ``CheckpointError``."""
    biased = config.attention_bias
    return common_fields(config) | {
        "embedding_scale": positive_number(config, "embedding_multiplier"),
        "softmax_scale": positive_number(config, "attention_multiplier"),
        "residual_scale": positive_number(config, "residual_multiplier"),
        "logit_scale": 1 / positive_number(config, "logits_scaling"),
        "qkv_bias": biased,
        "o_bias": biased,
    }
