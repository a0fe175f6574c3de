"""Mellum 2: Qwen3-MoE's layers, some with a sliding window and a rotation of their own."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import (
    ArchitectureConfig,
    Mixture,
    common_fields,
    read_experts,
    sparse_layers,
    windows_of_layers,
)
from engine_core.models.qwen2_moe import QwenMoeLayer
from engine_core.ops.base import Routing


class MellumForCausalLM(CausalLM):
    """Multi-token prediction layers are skipped."""

    model_type = "mellum"
    layer_class = QwenMoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, biased = common_fields(config, windows=windows_of_layers), config.attention_bias
        experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size")
        routing = Routing(experts.top_k, renormalize=bool(config.norm_topk_prob))
        mixture = Mixture(experts, routing, sparse_layers(config, fields["num_layers"]))
        return ArchitectureConfig(**fields, qkv_bias=biased, o_bias=biased, qk_norm=True, mixture=mixture)

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or name.startswith("mtp.")
