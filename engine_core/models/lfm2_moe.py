"""LFM2 with experts in all but the first layers, chosen by sigmoids that a bias may correct."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import FusedMoE, RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP
from engine_core.models.lfm2 import CONV, FULL, Lfm2Config, Lfm2Model, lfm2_fields, lfm2_operator
from engine_core.models.model_config import Mixture, positive_number, read_experts, whole_number
from engine_core.ops.base import Routing, Scoring
from engine_core.weights.expert_tensors import SeparateExperts

_SUM_OFFSET = 1e-6


class Lfm2MoeLayer:
    """LFM2's, with experts in the feed-forward block's place."""

    def __init__(self, config: Lfm2Config, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.operator = lfm2_operator(config, index, prefix, parts)
        self.feed_forward = _feed_forward(config, index, f"{prefix}.feed_forward", parts)
        self.operator_norm = parts.rms_norm(f"{prefix}.operator_norm", hidden, eps)
        self.ffn_norm = parts.rms_norm(f"{prefix}.ffn_norm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.operator(self.operator_norm(hidden), context, residual=hidden)
        return self.feed_forward(self.ffn_norm(hidden), residual=hidden)


def _feed_forward(config: Lfm2Config, index: int, prefix: str, parts: PartFactory) -> GatedMLP | FusedMoE:
    mixture = config.mixture
    assert mixture is not None
    if not mixture.is_sparse[index]:
        return GatedMLP(config, prefix, parts, down_name="w2")
    bias = f"{prefix}.expert_bias" if mixture.correction_bias else None
    experts = SeparateExperts(f"{prefix}.experts", gate="w1", up="w3", down="w2")
    router = RouterTensors(f"{prefix}.gate", correction_bias=bias)
    return parts.fused_moe(mixture.shape, mixture.routing, router, experts)


class Lfm2MoeForCausalLM(Lfm2Model):
    """Feed-forward blocks have the size given."""

    model_type = "lfm2_moe"
    layer_class = Lfm2MoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Lfm2Config:
        fields = lfm2_fields(config, (CONV, FULL))
        experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size")
        dense, num_layers = whole_number(config, "num_dense_layers"), fields["num_layers"]
        if dense > num_layers:
            raise CheckpointError(
                f"num_dense_layers={dense} is not usable: expected at most num_hidden_layers={num_layers}"
            )
        routing = Routing(
            experts.top_k,
            Scoring.SIGMOID,
            renormalize=bool(config.norm_topk_prob),
            sum_offset=_SUM_OFFSET,
            scale=positive_number(config, "routed_scaling_factor"),
        )
        is_sparse = tuple(index >= dense for index in range(num_layers))
        mixture = Mixture(experts, routing, is_sparse, correction_bias=bool(config.use_expert_bias))
        return Lfm2Config(**fields, mixture=mixture)
