"""Granite 3 and 4 with experts: Granite's attention and multipliers, experts in all layers, perhaps a shared one."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.granite import granite_fields
from engine_core.models.model_config import ArchitectureConfig, Mixture, read_experts, whole_number
from engine_core.ops.base import Routing
from engine_core.weights.expert_tensors import StackedExperts, StackedParameters


class GraniteMoeFeedForward:
    """Experts, a shared one or both, with scaled residuals."""

    def __init__(self, config: ArchitectureConfig, prefix: str, parts: PartFactory) -> None:
        mixture, moe = config.mixture, f"{prefix}.block_sparse_moe"
        self.shared_mlp = self.experts = None
        if mixture is not None:
            router, experts = RouterTensors(f"{moe}.router.layer"), mixture.tensors(moe)
            self.experts = parts.fused_moe(mixture.shape, mixture.routing, router, experts)
        if (size := config.intermediate_size if mixture is None else mixture.shared_size) is not None:
            self.shared_mlp = GatedMLP(
                config, f"{prefix}.shared_mlp", parts, intermediate_size=size, down_name="output_linear"
            )

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if self.shared_mlp is not None:
            residual = self.shared_mlp(x, residual)
        return residual if self.experts is None else self.experts(x, residual)


class GraniteMoeLayer:
    """Attention, then a feed-forward block, each with a norm before it."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self.feed_forward = GraniteMoeFeedForward(config, prefix, parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.feed_forward(self.post_attention_layernorm(hidden), residual=hidden)


class GraniteMoeForCausalLM(CausalLM):
    """The softmax of expert weights spans only a row's chosen experts."""

    model_type = "granitemoe"
    layer_class = GraniteMoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        return granite_moe_config(config, granite_fields(config), None)


def granite_moe_config(config: PretrainedConfig, fields: dict[str, Any], shared_size: int | None) -> ArchitectureConfig:
    """``fields`` and experts, one of them shared if it has a size. Raises ``CheckpointError``."""
    mixture = granite_mixture(config, fields, shared_size)
    return ArchitectureConfig(**fields, gate_up_names=("input_linear",), mixture=mixture)


def granite_mixture(config: PretrainedConfig, fields: dict[str, Any], shared_size: int | None) -> Mixture:
    """The experts of all layers. Raises ``CheckpointError``."""
    experts = read_experts(config, fields, num_experts="num_local_experts", intermediate_size="intermediate_size")
    routing = Routing(experts.top_k, renormalize=True, scale=fields["residual_scale"])
    parameters = StackedParameters("experts.gate_up_proj", "experts.down_proj")
    stacked = partial(StackedExperts, gate_up="input_linear.weight", down="output_linear.weight", parameters=parameters)
    return Mixture(experts, routing, (True,) * fields["num_layers"], shared_size, tensors=stacked)


class GraniteMoeSharedForCausalLM(GraniteMoeForCausalLM):
    """One expert may be shared."""

    model_type = "granitemoeshared"

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        shared = whole_number(config, "shared_intermediate_size") or None
        return granite_moe_config(config, granite_fields(config), shared)
