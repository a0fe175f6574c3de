"""Qwen3.5-MoE: Qwen3.5 with experts in every layer, one of them shared."""

from __future__ import annotations

from transformers import PretrainedConfig

from engine_core.models.gated_delta_net import GatedDeltaNetConfig, read_gated_delta_net
from engine_core.models.model_config import Mixture, positive, read_experts
from engine_core.models.qwen3_5 import QwenHybrid
from engine_core.ops.base import Routing
from engine_core.weights.expert_tensors import SeparateExperts, StackedExperts

STACKED_EXPERTS = "stacked_experts"
"""Field of the configuration: the checkpoint stores all experts of a layer together."""


class Qwen3_5MoeForCausalLM(QwenHybrid):
    """The weights of the chosen experts always sum to one."""

    model_type = "qwen3_5_moe_text"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> GatedDeltaNetConfig:
        shared = "shared_expert_intermediate_size"
        fields = read_gated_delta_net(config, intermediate_size=shared)
        experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size")
        mixture = Mixture(
            experts,
            Routing(experts.top_k, renormalize=True),
            (True,) * fields["num_layers"],
            positive(config, shared),
            tensors=StackedExperts if getattr(config, STACKED_EXPERTS, False) else SeparateExperts,
        )
        return GatedDeltaNetConfig(**fields, mixture=mixture)
