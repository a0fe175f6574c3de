"""Mixtral: Mistral's layers, all with experts."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, Mixture, common_fields, read_experts, sliding_window
from engine_core.ops.base import Routing
from engine_core.weights.expert_tensors import SeparateExperts


class MixtralLayer:
    """Attention, then experts, each with a norm before it and a residual."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, mixture = config.hidden_size, config.norm_eps, config.mixture
        assert mixture is not None
        moe = f"{prefix}.block_sparse_moe"
        router = RouterTensors(f"{moe}.gate")
        experts = SeparateExperts(f"{moe}.experts", gate="w1", up="w3", down="w2")
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self.block_sparse_moe = parts.fused_moe(mixture.shape, mixture.routing, router, experts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.block_sparse_moe(self.post_attention_layernorm(hidden), residual=hidden)


class MixtralForCausalLM(CausalLM):
    """The weights of a row's experts sum to 1."""

    model_type = "mixtral"
    layer_class = MixtralLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields = common_fields(config)
        count = fields["num_layers"]
        experts = read_experts(config, fields, num_experts="num_local_experts", intermediate_size="intermediate_size")
        mixture = Mixture(experts, Routing(experts.top_k, renormalize=True), (True,) * count)
        return ArchitectureConfig(**fields | {"sliding_windows": (sliding_window(config),) * count}, mixture=mixture)
