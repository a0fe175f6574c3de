"""Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention; experts, and a shared expert with a gate on its output."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import (
    ArchitectureConfig,
    Mixture,
    common_fields,
    positive,
    read_experts,
    windows_of_layers,
)
from engine_core.ops.base import Routing


class QwenMoeBlock:
    """Routed experts, and perhaps a shared one, times the sigmoid of a gate."""

    def __init__(self, config: ArchitectureConfig, mixture: Mixture, prefix: str, parts: PartFactory) -> None:
        router, experts = RouterTensors(f"{prefix}.gate"), mixture.tensors(f"{prefix}.experts")
        self.experts = parts.fused_moe(mixture.shape, mixture.routing, router, experts)
        self.shared_expert = None
        if (size := mixture.shared_size) is not None:
            self.shared_expert = GatedMLP(config, f"{prefix}.shared_expert", parts, intermediate_size=size)
            self.shared_expert_gate = parts.sigmoid_gate(f"{prefix}.shared_expert_gate", config.hidden_size)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if self.shared_expert is not None:
            residual = self.shared_expert_gate.add_gated(x, self.shared_expert(x), residual)
        return self.experts(x, residual)


class QwenMoeLayer:
    """Attention, then a dense feed-forward block or experts, each with a norm before it and a residual."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, mixture = config.hidden_size, config.norm_eps, config.mixture
        assert mixture is not None
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self.mlp: GatedMLP | QwenMoeBlock
        if mixture.is_sparse[index]:
            self.mlp = QwenMoeBlock(config, mixture, f"{prefix}.mlp", parts)
        else:
            self.mlp = GatedMLP(config, f"{prefix}.mlp", parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.mlp(self.post_attention_layernorm(hidden), residual=hidden)


class Qwen2MoeForCausalLM(CausalLM):
    """Layers without experts have a dense feed-forward block."""

    model_type = "qwen2_moe"
    layer_class = QwenMoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields = common_fields(config)
        mixture = qwen_mixture(config, fields, positive(config, "shared_expert_intermediate_size"))
        windows = (None,) * fields["num_layers"]
        if "sliding_attention" in config.layer_types:
            windows = windows_of_layers(config, fields["num_layers"])
        return ArchitectureConfig(**fields | {"sliding_windows": windows}, qkv_bias=config.qkv_bias, mixture=mixture)


def qwen_mixture(config: PretrainedConfig, fields: dict[str, Any], shared_size: int | None) -> Mixture:
    """The experts of Qwen2-MoE and Qwen3-MoE: in every ``decoder_sparse_step``th layer that is not in
    ``mlp_only_layers``. Raises ``CheckpointError``.
    """
    experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size")
    num_layers, step, dense = fields["num_layers"], positive(config, "decoder_sparse_step"), config.mlp_only_layers
    if not all(isinstance(layer, int) and 0 <= layer < num_layers for layer in dense):
        raise CheckpointError(f"mlp_only_layers={dense!r} is not usable: expected layers below {num_layers}")
    is_sparse = tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))
    return Mixture(experts, Routing(experts.top_k, renormalize=bool(config.norm_topk_prob)), is_sparse, shared_size)
