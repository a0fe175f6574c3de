"""Gemma 2: norms before and after each block, caps on attention's scores and on logits, every other layer a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.parts import HeadNormNames, Norm
from engine_core.models.blocks import AttentionVariant, GatedMLP, LayerNorms, SelfAttention, TransformerLayer
from engine_core.models.causal_lm import CausalLM, DecoderLayer
from engine_core.models.model_config import (
    ArchitectureConfig,
    common_fields,
    optional_number,
    positive_number,
    windows_of_layers,
)
from engine_core.quantization.base import Features

NORM_OFFSET = 1.0
"""Norms are saved as the difference of their weights from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(ArchitectureConfig):
    """The configuration of Gemma 2 and 3."""

    attention_bias: bool
    qk_norm: bool = False


def gemma_fields(config: PretrainedConfig) -> dict[str, Any]:
    """What both read alike."""
    if config.use_bidirectional_attention:
        raise UnsupportedModelError(
            "use_bidirectional_attention=True is not supported: no token may attend to later ones"
        )
    fields = common_fields(config, activation="hidden_activation")
    return fields | {
        "sliding_windows": windows_of_layers(config, fields["num_layers"]),
        "embedding_scale": fields["hidden_size"] ** 0.5,
        "attention_bias": config.attention_bias,
        "softmax_scale": positive_number(config, "query_pre_attn_scalar") ** -0.5,
        "logit_softcap": optional_number(config, "final_logit_softcapping"),
    }


class Gemma2ForCausalLM(CausalLM):
    """The layers of Gemma 3 differ by what the configuration says."""

    model_type = "gemma2"
    config: GemmaConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> GemmaConfig:
        return GemmaConfig(**gemma_fields(config), attn_logit_softcap=optional_number(config, "attn_logit_softcapping"))

    def make_layer(self, index: int, prefix: str, layers: PartFactory) -> DecoderLayer:
        config, attention = self.config, f"{prefix}.self_attn"
        head_norms = HeadNormNames(f"{attention}.q_norm", f"{attention}.k_norm", config.norm_eps, NORM_OFFSET)
        variant = AttentionVariant(
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            head_norms=head_norms if config.qk_norm else None,
        )
        norms = LayerNorms(
            before_attention=self._norm_named(f"{prefix}.input_layernorm", layers),
            after_attention=self._norm_named(f"{prefix}.post_attention_layernorm", layers),
            before_mlp=self._norm_named(f"{prefix}.pre_feedforward_layernorm", layers),
            after_mlp=self._norm_named(f"{prefix}.post_feedforward_layernorm", layers),
        )
        mlp = GatedMLP(config, f"{prefix}.mlp", layers)
        return TransformerLayer(SelfAttention(config, index, attention, layers, variant), mlp, norms, layers)

    def make_norm(self, layers: PartFactory) -> Norm:
        return self._norm_named(f"{self.prefix}.norm", layers)

    def _norm_named(self, name: str, layers: PartFactory) -> Norm:
        return layers.rms_norm(name, Features(1, self.config.hidden_size), self.config.norm_eps, NORM_OFFSET)
