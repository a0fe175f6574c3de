"""Gemma 2: norms before and after each block, caps on attention scores and logits, a window in every other layer."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.norm import RMSNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import (
    ArchitectureConfig,
    common_fields,
    optional_number,
    positive_number,
    windows_of_layers,
)


class Gemma2Layer:
    """Attention, then a feed-forward block, each between two norms and with a residual."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        def norm(name: str) -> RMSNorm:
            return parts.rms_norm(f"{prefix}.{name}", config.hidden_size, config.norm_eps, config.norm_offset)

        self.input_layernorm = norm("input_layernorm")
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm")
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")
        self.mlp = GatedMLP(config, f"{prefix}.mlp", parts)
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self._select_rows = parts.backend.select_rows

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(hidden), context)
        hidden = self.post_attention_layernorm(attended, residual=self._select_rows(hidden, context.rows))
        return self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(hidden)), residual=hidden)


def gemma_fields(config: PretrainedConfig) -> dict[str, Any]:
    """The fields that Gemma 2 and 3 share."""
    fields = common_fields(config, activation="hidden_activation", windows=windows_of_layers)
    return fields | {
        "embedding_scale": fields["hidden_size"] ** 0.5,
        "qkv_bias": config.attention_bias,
        "o_bias": config.attention_bias,
        "norm_offset": 1.0,  # checkpoints hold norm weights minus 1
        "softmax_scale": positive_number(config, "query_pre_attn_scalar") ** -0.5,
        "logit_softcap": optional_number(config, "final_logit_softcapping"),
    }


def require_causal(config: PretrainedConfig) -> None:
    """Raise ``UnsupportedModelError`` for an encoder with the class of a decoder."""
    if config.use_bidirectional_attention:
        raise UnsupportedModelError(
            "use_bidirectional_attention=True is not supported in a decoder: no token may attend to later ones"
        )


class Gemma2ForCausalLM(CausalLM):
    """Attention scores are capped, too."""

    model_type = "gemma2"
    layer_class = Gemma2Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        require_causal(config)
        softcap = optional_number(config, "attn_logit_softcapping")
        return ArchitectureConfig(**gemma_fields(config), attn_logit_softcap=softcap)
