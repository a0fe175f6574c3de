"""OLMoE: Llama's layers with experts in all of them, and queries and keys normalized over all heads."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.fused_moe import FusedMoE, RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import HeadsNormedAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import ArchitectureConfig, Mixture, common_fields, read_experts
from engine_core.ops.base import Routing


class OlmoeLayer:
    """Attention, then experts, each with a norm before it and a residual."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = HeadsNormedAttention(config, index, f"{prefix}.self_attn", parts)
        self.mlp = olmoe_experts(config, f"{prefix}.mlp", parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.mlp(self.post_attention_layernorm(hidden), residual=hidden)


def olmoe_experts(config: ArchitectureConfig, prefix: str, parts: PartFactory) -> FusedMoE:
    """The experts of OLMoE and FlexOlmo."""
    mixture = config.mixture
    assert mixture is not None
    router, experts = RouterTensors(f"{prefix}.gate"), mixture.tensors(f"{prefix}.experts")
    return parts.fused_moe(mixture.shape, mixture.routing, router, experts)


class OlmoeForCausalLM(CausalLM):
    """Biases of attention are optional."""

    model_type = "olmoe"
    layer_class = OlmoeLayer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        if (most := config.clip_qkv) is not None:
            raise UnsupportedModelError(f"clip_qkv={most!r} is not supported: expected null")
        read = olmoe_config(config)
        if read.hidden_size != read.num_heads * read.head_dim:  # the width of the queries' norm
            raise CheckpointError(
                f"hidden_size={read.hidden_size} is not usable: expected a multiple of "
                f"num_attention_heads={read.num_heads}"
            )
        return read


def olmoe_config(config: PretrainedConfig) -> ArchitectureConfig:
    """What OLMoE and FlexOlmo share. Raises ``CheckpointError``, ``UnsupportedModelError``."""
    fields, biased = common_fields(config), config.attention_bias
    experts = read_experts(config, fields, num_experts="num_experts", intermediate_size="intermediate_size")
    routing = Routing(experts.top_k, renormalize=bool(config.norm_topk_prob))
    mixture = Mixture(experts, routing, (True,) * fields["num_layers"])
    return ArchitectureConfig(**fields, qkv_bias=biased, o_bias=biased, mixture=mixture)
