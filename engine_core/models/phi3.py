"""Phi-3, Phi-3.5 and Phi-4: Llama's layers from fused projections, with LongRoPE and heads that are rotated in part."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import AttentionVariant, GatedMLP, SelfAttention, TransformerLayer, pre_norms
from engine_core.models.causal_lm import CausalLM, DecoderLayer
from engine_core.models.model_config import ArchitectureConfig, common_fields, uniform_windows


class Phi3ForCausalLM(CausalLM):
    """No biases. A window, where there is one, applies to every layer."""

    model_type = "phi3"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields = common_fields(config, partial_rotary=True)
        return ArchitectureConfig(**fields | {"sliding_windows": uniform_windows(config, fields["num_layers"])})

    def make_layer(self, index: int, prefix: str, layers: PartFactory) -> DecoderLayer:
        config, variant = self.config, AttentionVariant(qkv_names=("qkv_proj",))
        return TransformerLayer(
            SelfAttention(config, index, f"{prefix}.self_attn", layers, variant),
            GatedMLP(config, f"{prefix}.mlp", layers, names=("gate_up_proj",)),
            pre_norms(prefix, config, layers),
            layers,
        )
