"""GLM-4 in its first format: Llama's layers with a fused feed-forward projection and neighbouring elements rotated as
pairs, in a part of each head.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import (
    AttentionVariant,
    GatedMLP,
    LayerNorms,
    SelfAttention,
    TransformerLayer,
    pre_norms,
)
from engine_core.models.causal_lm import CausalLM, DecoderLayer
from engine_core.models.llama import LlamaConfig
from engine_core.models.model_config import common_fields, interleaved


class GlmForCausalLM(CausalLM):
    """Biases on the query, key and value projections only, where the configuration asks for them."""

    model_type = "glm"
    config: LlamaConfig

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> LlamaConfig:
        fields = common_fields(config, partial_rotary=True)
        return LlamaConfig(**fields | {"ropes": interleaved(fields["ropes"])}, qkv_bias=config.attention_bias)

    def make_layer(self, index: int, prefix: str, layers: PartFactory) -> DecoderLayer:
        config, variant = self.config, AttentionVariant(qkv_bias=self.config.qkv_bias)
        return TransformerLayer(
            SelfAttention(config, index, f"{prefix}.self_attn", layers, variant),
            GatedMLP(config, f"{prefix}.mlp", layers, names=("gate_up_proj",)),
            self.layer_norms(prefix, layers),
            layers,
        )

    def layer_norms(self, prefix: str, layers: PartFactory) -> LayerNorms:
        """The norms of the layer whose tensors' names begin with ``prefix``."""
        return pre_norms(prefix, self.config, layers)
