"""MiniMax-M2: norms of queries and keys over all heads, partial rotation, experts chosen by corrected sigmoids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import HeadsNormedAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.deepseek_v3 import check_only, is_unused
from engine_core.models.model_config import ArchitectureConfig, Mixture, common_fields, read_experts
from engine_core.ops.base import Routing, Scoring
from engine_core.weights.expert_tensors import SeparateExperts


class MiniMaxM2Layer:
    """Attention, then experts, each with a norm before it and a residual."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, mixture, moe = config.hidden_size, config.norm_eps, config.mixture, f"{prefix}.block_sparse_moe"
        assert mixture is not None
        router = RouterTensors(f"{moe}.gate", correction_bias=f"{moe}.e_score_correction_bias")
        experts = SeparateExperts(f"{moe}.experts", gate="w1", up="w3", down="w2")
        self.self_attn = HeadsNormedAttention(config, index, f"{prefix}.self_attn", parts)
        self.block_sparse_moe = parts.fused_moe(mixture.shape, mixture.routing, router, experts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.block_sparse_moe(self.post_attention_layernorm(hidden), residual=hidden)


class MiniMaxM2ForCausalLM(CausalLM):
    """Multi-token prediction layers are skipped."""

    model_type = "minimax_m2"
    layer_class = MiniMaxM2Layer

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_only(raw, {"scoring_func": "sigmoid", "use_qk_norm": True, "shared_intermediate_size": 0})
        kinds = raw.get("attn_type_list")
        if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
            raise UnsupportedModelError(f"attn_type_list={kinds!r} is not supported: expected 1 for all layers")

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        fields = common_fields(config, partial_rotary=True)
        experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="intermediate_size")
        routing = Routing(experts.top_k, Scoring.SIGMOID, renormalize=True)
        mixture = Mixture(experts, routing, (True,) * fields["num_layers"], correction_bias=True)
        return ArchitectureConfig(**fields, mixture=mixture)

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or is_unused(name, self.config)
