"""gpt-oss: attention with sinks, a window in every other layer; experts with biases and a clamped SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from transformers import PretrainedConfig

from engine_core.activation import Activation
from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import (
    ArchitectureConfig,
    Mixture,
    common_fields,
    positive_number,
    read_experts,
    windows_of_layers,
)
from engine_core.ops.base import Routing
from engine_core.weights.expert_tensors import InterleavedExperts


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(ArchitectureConfig):
    """All layers have experts."""

    mixture: Mixture


class GptOssLayer:
    """Attention, then experts, each with a norm before it and a residual."""

    def __init__(self, config: GptOssConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, mixture = config.hidden_size, config.norm_eps, config.mixture
        router, name = RouterTensors(f"{prefix}.mlp.router", bias=True), f"{prefix}.mlp.experts"
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts)
        self.mlp = parts.fused_moe(mixture.shape, mixture.routing, router, InterleavedExperts(name))
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.mlp(self.post_attention_layernorm(hidden), residual=hidden)


class GptOssForCausalLM(CausalLM):
    """The softmax of expert weights spans only a row's chosen experts."""

    model_type = "gpt_oss"
    layer_class = GptOssLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> GptOssConfig:
        if config.hidden_act != "silu":
            raise UnsupportedModelError(f"hidden_act {config.hidden_act!r} is not supported: expected silu")
        fields, biased = common_fields(config, windows=windows_of_layers), config.attention_bias
        experts = replace(
            read_experts(config, fields, num_experts="num_local_experts", intermediate_size="intermediate_size"),
            activation=Activation.CLAMPED_SWIGLU,
            bias=True,
            # Older transformers lack both fields and compute with these defaults.
            swiglu_limit=positive_number(config, "swiglu_limit", 7.0),
            swiglu_alpha=positive_number(config, "swiglu_alpha", 1.702),
        )
        return GptOssConfig(
            **fields,
            attention_sinks=True,
            qkv_bias=biased,
            o_bias=biased,
            mixture=Mixture(experts, Routing(experts.top_k, renormalize=True), (True,) * fields["num_layers"]),
        )
