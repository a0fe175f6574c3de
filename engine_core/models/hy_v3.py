"""Hunyuan 3: Qwen3's attention; after a dense layer, experts chosen by corrected sigmoids, some of them shared."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import MoeNames, is_unused
from engine_core.models.glm4_moe import Glm4MoeLayer
from engine_core.models.model_config import (
    ArchitectureConfig,
    Mixture,
    common_fields,
    positive,
    positive_number,
    read_experts,
    sparse_layers,
)
from engine_core.ops.base import Routing, Scoring


class HYV3Layer(Glm4MoeLayer):
    """Names of its own."""

    names = MoeNames(gate="router.gate", correction_bias="expert_bias", shared="shared_mlp")


class HYV3ForCausalLM(CausalLM):
    """Multi-token prediction layers are skipped. The shared experts are added in float32, whatever
    ``enable_moe_fp32_combine`` says.
    """

    model_type = "hy_v3"
    layer_class = HYV3Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields, biased = common_fields(config), config.attention_bias
        experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size")
        scale = positive_number(config, "router_scaling_factor")
        mixture = Mixture(
            experts,
            Routing(experts.top_k, Scoring.SIGMOID, renormalize=True, scale=scale),
            sparse_layers(config, fields["num_layers"]),
            experts.intermediate_size * positive(config, "num_shared_experts"),
            correction_bias=True,
        )
        return ArchitectureConfig(
            **fields, qkv_bias=biased, o_bias=biased, mlp_bias=config.mlp_bias, qk_norm=True, mixture=mixture
        )

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or is_unused(name, self.config)
