"""Llama 4's text model: attention in chunks where heads are rotated, over all tokens where they are not, and experts
whose inputs are weighted, with a shared one beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.models.llama4.configuration_llama4 import Llama4TextConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.attention import HeadNormNames
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import MOST_POSITIONS, RopeParameters
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import (
    ArchitectureConfig,
    Mixture,
    common_fields,
    layer_types,
    positive,
    positive_number,
    read_experts,
)
from engine_core.ops.base import Routing, Scoring
from engine_core.weights.expert_tensors import TransposedExperts

_FULL, _CHUNKED = "full_attention", "chunked_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Config(ArchitectureConfig):
    """``intermediate_size`` is that of dense blocks."""

    normalizes_rotated: bool
    """Whether queries and keys are normalized in layers that rotate them, with weights of one."""


class Llama4Experts:
    """Routed experts and a shared one."""

    def __init__(self, config: Llama4Config, mixture: Mixture, prefix: str, parts: PartFactory) -> None:
        router, experts = RouterTensors(f"{prefix}.router"), mixture.tensors(f"{prefix}.experts")
        self.experts = parts.fused_moe(mixture.shape, mixture.routing, router, experts)
        self.shared_expert = GatedMLP(config, f"{prefix}.shared_expert", parts, intermediate_size=mixture.shared_size)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.experts(x, self.shared_expert(x, residual))


class Llama4Layer:
    """Attention, then a dense feed-forward block or experts, each with a norm before it and a residual."""

    def __init__(self, config: Llama4Config, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps, mixture = config.hidden_size, config.norm_eps, config.mixture
        norms, rope, block = None, config.ropes[index], f"{prefix}.feed_forward"
        if config.normalizes_rotated and rope is not None and rope.rotary_dim > 0:
            # Transformers normalizes after the rotation, which does not change a head's root mean square.
            norms = HeadNormNames(None, None, eps)
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts, head_norms=norms)
        self.feed_forward: GatedMLP | Llama4Experts
        if mixture is not None and mixture.is_sparse[index]:
            self.feed_forward = Llama4Experts(config, mixture, block, parts)
        else:
            self.feed_forward = GatedMLP(config, block, parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.feed_forward(self.post_attention_layernorm(hidden), residual=hidden)


class Llama4ForCausalLM(CausalLM):
    """By default, one layer in four does not rotate, sees all tokens, and scales queries by their position."""

    model_type = "llama4_text"
    layer_class = Llama4Layer

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        for name in ("no_rope_layer_interval", "interleave_moe_layer_step"):  # transformers divides by them
            value = raw.get(name, getattr(Llama4TextConfig, name))
            if isinstance(value, int) and value < 1:
                raise CheckpointError(f"{name}={value} is not usable: expected a positive whole number")

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Llama4Config:
        fields, biased = common_fields(config, interleaved=True, windows=_chunks), config.attention_bias
        ropes, normalizes = _ropes(config, fields["ropes"]), bool(config.use_qk_norm)
        if normalizes and any(rope is not None and rope.attention_factor != 1.0 for rope in ropes):
            raise UnsupportedModelError(
                "rope_parameters: an attention_factor other than 1 is not supported with use_qk_norm=True"
            )
        dense = {"ropes": ropes, "intermediate_size": positive(config, "intermediate_size_mlp")}
        return Llama4Config(
            **fields | dense,
            chunked_attention=True,
            qkv_bias=biased,
            o_bias=biased,
            normalizes_rotated=normalizes,
            mixture=_mixture(config, fields),
        )


def _chunks(config: PretrainedConfig, num_layers: int) -> tuple[int | None, ...]:
    """``attention_chunk_size`` for the layers that attend in chunks."""
    kinds, size = layer_types(config, num_layers), positive(config, "attention_chunk_size", MOST_POSITIONS)
    if unknown := set(kinds) - {_FULL, _CHUNKED}:
        raise UnsupportedModelError(
            f"layer_types: {', '.join(sorted(unknown))} is not supported: expected {_FULL} or {_CHUNKED}"
        )
    return tuple(size if kind == _CHUNKED else None for kind in kinds)


def _ropes(config: PretrainedConfig, ropes: tuple[RopeParameters | None, ...]) -> tuple[RopeParameters | None, ...]:
    """``ropes`` of layers that rotate; the others may scale their queries (https://arxiv.org/abs/2501.19399)."""
    rotating, scaling = config.no_rope_layers, None
    if len(rotating) < len(ropes):
        raise CheckpointError(
            f"no_rope_layers={rotating!r} is not usable: expected a 0 or 1 for each of num_hidden_layers={len(ropes)}"
        )
    if config.attn_temperature_tuning and config.attn_scale != 0:
        scaling = RopeParameters(
            "default",
            1.0,
            rotary_dim=0,
            original_max_position_embeddings=positive(config, "floor_scale", MOST_POSITIONS),
            llama_4_scaling_beta=positive_number(config, "attn_scale"),
            llama_4_scaling_offset=1,
        )
    return tuple(rope if rotates else scaling for rope, rotates in zip(ropes, rotating, strict=False))


def _mixture(config: PretrainedConfig, fields: dict[str, Any]) -> Mixture | None:
    """The experts, which are as large as the shared one; None if no layer has any."""
    num_layers, sparse = fields["num_layers"], config.moe_layers
    if not any(layer in sparse for layer in range(num_layers)):
        return None
    shape = read_experts(config, fields, num_experts="num_local_experts", intermediate_size="intermediate_size")
    return Mixture(
        replace(shape, weighs_inputs=True),
        Routing(shape.top_k, Scoring.SIGMOID),
        tuple(layer in sparse for layer in range(num_layers)),
        shape.intermediate_size,
        tensors=TransposedExperts,
    )
