"""Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention; experts, and a shared one, whose output a gate scales."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.layers.fused_moe import RouterTensors, SeparateExperts
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import FeedForward, GatedMLP
from engine_core.models.mixtral import MixtralConfig, MixtralForCausalLM
from engine_core.models.mixture import Mixture, SharedExperts, read_experts
from engine_core.models.model_config import common_fields, positive, windows_of_layers
from engine_core.ops.base import ExpertsShape, Routing


def qwen_experts(config: PretrainedConfig, fields: dict[str, Any]) -> ExpertsShape:
    """The experts of Qwen2-MoE and Qwen3-MoE."""
    return read_experts(config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size")


def sparse_layers(config: PretrainedConfig, num_layers: int) -> tuple[bool, ...]:
    """Which layers have experts: every ``decoder_sparse_step``th that is not one of ``mlp_only_layers``."""
    step, dense = positive(config, "decoder_sparse_step"), config.mlp_only_layers
    if not all(isinstance(layer, int) and 0 <= layer < num_layers for layer in dense):
        raise CheckpointError(f"mlp_only_layers={dense!r} is not usable: expected layers below {num_layers}")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))


class Qwen2MoeForCausalLM(MixtralForCausalLM):
    """Layers without experts have a dense feed-forward block."""

    model_type = "qwen2_moe"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> MixtralConfig:
        fields = common_fields(config)
        experts = qwen_experts(config, fields)
        mixture = Mixture(
            experts,
            Routing(experts.top_k, renormalize=bool(config.norm_topk_prob)),
            sparse_layers(config, fields["num_layers"]),
            positive(config, "shared_expert_intermediate_size"),
        )
        windows = (None,) * fields["num_layers"]
        if "sliding_attention" in config.layer_types:
            windows = windows_of_layers(config, fields["num_layers"])
        return MixtralConfig(**fields | {"sliding_windows": windows}, qkv_bias=config.qkv_bias, mixture=mixture)

    def make_mlp(self, index: int, prefix: str, layers: PartFactory) -> FeedForward:
        config, mixture, prefix = self.config, self.config.mixture, f"{prefix}.mlp"
        if not mixture.is_sparse[index]:
            return GatedMLP(config, prefix, layers)
        tensors, router = SeparateExperts(f"{prefix}.experts"), RouterTensors(f"{prefix}.gate")
        routed = layers.fused_moe(mixture.shape, mixture.routing, router, tensors)
        if mixture.shared_size is None:
            return routed
        shared = GatedMLP(config, f"{prefix}.shared_expert", layers, intermediate_size=mixture.shared_size)
        return SharedExperts(routed, shared, layers, config, gate=f"{prefix}.shared_expert_gate")
