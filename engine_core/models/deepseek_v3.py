"""DeepSeek V3 and R1: latent attention; after some dense layers, experts chosen by sigmoids and groups, one shared."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.kv_cache_interface import LayerCacheSpec, MLAAttentionSpec
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.mla import MLAShape
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import RopeParameters, read_number, yarn_scale
from engine_core.models.blocks import GatedMLP
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import (
    ArchitectureConfig,
    Mixture,
    common_fields,
    positive,
    positive_number,
    read_experts,
    whole_number,
)
from engine_core.ops.base import Routing, Scoring
from engine_core.weights.expert_tensors import SeparateExperts
from engine_core.weights.experts import ExpertsShape
from engine_core.weights.features import Features

_LATENT_EPS = 1e-6
"""The epsilon of the latents' norms; the other norms have ``rms_norm_eps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(ArchitectureConfig):
    """``num_kv_heads`` and ``head_dim`` describe the cache: one head, and its rotated part."""

    mla: MLAShape
    q_lora_rank: int | None
    """Width of the queries' latent; None: queries are projected from hidden states."""
    softmax_scale: float

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec, ...]:
        return (MLAAttentionSpec(self.mla.kv_lora_rank, self.mla.qk_rope_head_dim),) * self.num_layers


class DeepseekLayer:
    """Latent attention, then a feed-forward block or experts, each with a norm before it and a residual."""

    def __init__(self, config: DeepseekConfig, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.self_attn = LatentAttention(config, f"{prefix}.self_attn", parts)
        self.mlp = deepseek_mlp(config, index, f"{prefix}.mlp", parts)
        self.input_layernorm = parts.rms_norm(f"{prefix}.input_layernorm", hidden, eps)
        self.post_attention_layernorm = parts.rms_norm(f"{prefix}.post_attention_layernorm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.self_attn(self.input_layernorm(hidden), context, residual=hidden)
        return self.mlp(self.post_attention_layernorm(hidden), residual=hidden)


class LatentAttention:
    """Queries through their own latent or none; keys and values through the cached latent."""

    def __init__(self, config: DeepseekConfig, prefix: str, parts: PartFactory) -> None:
        shape, hidden, rank, bias = config.mla, config.hidden_size, config.q_lora_rank, config.qkv_bias
        latents = (shape.kv_lora_rank, shape.qk_rope_head_dim)
        names, rows, outputs = [f"{prefix}.kv_a_proj_with_mqa"], [sum(latents)], list(latents)
        if rank is not None:
            names, rows, outputs = [f"{prefix}.q_a_proj", *names], [rank, *rows], [rank, *outputs]
            self.q_a_layernorm = parts.rms_norm(f"{prefix}.q_a_layernorm", rank, _LATENT_EPS)
        # One projection makes both latents.
        features = Features(1, sum(outputs), parts=tuple(outputs))
        self.a_proj = parts.replicated_linear(tuple(names), hidden, features, bias=bias, rows=tuple(rows))
        self.kv_a_layernorm = parts.rms_norm(f"{prefix}.kv_a_layernorm", shape.kv_lora_rank, _LATENT_EPS)
        if rank is None:
            self.q_proj = parts.heads_linear(f"{prefix}.q_proj", hidden, shape.queries)
        else:
            self.q_proj = parts.heads_linear(f"{prefix}.q_b_proj", rank, shape.queries)
        self.attn = parts.latent_attention(f"{prefix}.kv_b_proj", shape, config.softmax_scale)
        attended = Features(shape.num_heads, shape.v_head_dim)
        self.o_proj = parts.linear(f"{prefix}.o_proj", attended, hidden, bias=config.o_bias)
        self._num_heads = len(parts.shares.groups(shape.num_heads))
        self._gather_heads = parts.shares.gather_heads(shape.num_heads, shape.v_head_dim)
        self._split = [parts.backend.padded(size) for size in outputs]
        self._select_rows = parts.backend.select_rows

    def __call__(self, x: torch.Tensor, context: LayerContext, residual: torch.Tensor) -> torch.Tensor:
        """[R, H] for the wanted rows of ``x`` [T, H], or [T, H] for all, plus the same rows of ``residual`` [T, H]."""
        *query_latent, latent, rope = torch.split(self.a_proj(x), self._split, dim=1)
        queries = self.q_proj(self.q_a_layernorm(query_latent[0]) if query_latent else x)
        heads = queries.view(len(x), self._num_heads, -1)
        attended = self.attn(heads, self.kv_a_layernorm(latent), rope, context)
        attended, residual = (self._select_rows(each, context.rows) for each in (attended, residual))
        return self.o_proj(self._gather_heads(attended), residual)


@dataclass(frozen=True, slots=True)
class MoeNames:
    """Names below a mixture's prefix in a checkpoint."""

    gate: str = "gate"
    correction_bias: str = "gate.e_score_correction_bias"
    correction_is_row: bool = False
    """Whether the correction's shape is [1, E] instead of [E]."""
    shared: str = "shared_experts"


class DeepseekMoe:
    """Routed experts, and perhaps a shared one."""

    def __init__(
        self, config: ArchitectureConfig, mixture: Mixture, prefix: str, parts: PartFactory, names: MoeNames
    ) -> None:
        bias = f"{prefix}.{names.correction_bias}" if mixture.correction_bias else None
        router = RouterTensors(f"{prefix}.{names.gate}", correction_bias=bias, is_row=names.correction_is_row)
        self.experts = parts.fused_moe(mixture.shape, mixture.routing, router, SeparateExperts(f"{prefix}.experts"))
        self.shared_experts = None
        if (size := mixture.shared_size) is not None:
            self.shared_experts = GatedMLP(config, f"{prefix}.{names.shared}", parts, intermediate_size=size)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if self.shared_experts is not None:
            residual = self.shared_experts(x, residual)
        return self.experts(x, residual)


def deepseek_mlp(
    config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory, names: MoeNames | None = None
) -> GatedMLP | DeepseekMoe:
    """The feed-forward block of layer ``index``."""
    mixture = config.mixture
    assert mixture is not None
    if mixture.is_sparse[index]:
        return DeepseekMoe(config, mixture, prefix, parts, names or MoeNames())
    return GatedMLP(config, prefix, parts)


class DeepseekV3ForCausalLM(CausalLM):
    """Layers for multi-token prediction are left to ``mtp``."""

    model_type = "deepseek_v3"
    layer_class = DeepseekLayer
    config: DeepseekConfig

    @classmethod
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        check_only(raw, DEEPSEEK_ONLY)

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> DeepseekConfig:
        if config.head_dim != config.qk_rope_head_dim:  # transformers' default makes them equal
            raise UnsupportedModelError(
                f"head_dim={config.head_dim!r} is not supported: expected qk_rope_head_dim={config.qk_rope_head_dim!r}"
            )
        fields = deepseek_fields(config, interleaved=bool(config.rope_interleave))
        return DeepseekConfig(**fields, mixture=deepseek_mixture(config, fields))

    def is_redundant(self, name: str) -> bool:
        return super().is_redundant(name) or is_unused(name, self.config)


DEEPSEEK_ONLY = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
"""The only values of these fields in DeepSeek V3 and its descendants."""


def check_only(raw: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise ``UnsupportedModelError`` if a field that transformers ignores differs from its ``known`` value."""
    for name, value in known.items():
        if (given := raw.get(name)) is not None and given != value:
            raise UnsupportedModelError(f"{name}={given!r} is not supported: expected {value!r}")


def is_unused(name: str, config: ArchitectureConfig) -> bool:
    """Whether a tensor belongs to the multi-token prediction layers after the last, which only draft: ``mtp``."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return found is not None and int(found[1]) >= config.num_layers


def deepseek_fields(config: PretrainedConfig, *, interleaved: bool) -> dict[str, Any]:
    """The fields of ``DeepseekConfig`` except ``mixture``. Raises ``CheckpointError``."""
    nope, rope = positive(config, "qk_nope_head_dim"), positive(config, "qk_rope_head_dim")
    if rope % 2:
        raise CheckpointError(f"qk_rope_head_dim={rope} is not an even number")
    fields = common_fields(config, head_dim=rope, interleaved=interleaved)
    if fields["num_kv_heads"] != fields["num_heads"]:
        raise CheckpointError(
            f"num_key_value_heads={fields['num_kv_heads']} is not usable with latent attention: expected "
            f"num_attention_heads={fields['num_heads']}"
        )
    shape = MLAShape(
        fields["num_heads"], positive(config, "kv_lora_rank"), nope, rope, positive(config, "v_head_dim"), interleaved
    )
    return fields | {
        "num_kv_heads": 1,
        "mla": shape,
        "q_lora_rank": None if config.q_lora_rank is None else positive(config, "q_lora_rank"),
        "qkv_bias": bool(config.attention_bias),
        "o_bias": bool(config.attention_bias),
        "softmax_scale": _softmax_scale(config.rope_parameters or {}, fields["ropes"], nope + rope),
    }


def _softmax_scale(parameters: Mapping[str, Any], ropes: tuple[RopeParameters | None, ...], head_dim: int) -> float:
    """1 / √head size, times the square of YaRN's factor for all dimensions, if any.

    The factor applies to every rope type but ``default``, even to ``dynamic``, whose angles it does not change here.
    """
    scale, weight = 1 / math.sqrt(head_dim), parameters.get("mscale_all_dim")
    rope = next((each for each in ropes if each is not None), None)
    if rope is None or rope.rope_type == "default" or not weight:
        return scale
    if parameters.get("factor") is None:
        raise CheckpointError(f"rope_parameters: mscale_all_dim={weight} needs a factor: set factor")
    return scale * yarn_scale(read_number(parameters, "mscale_all_dim"), read_number(parameters, "factor")) ** 2


def deepseek_mixture(
    config: PretrainedConfig, fields: dict[str, Any], is_sparse: tuple[bool, ...] | None = None
) -> Mixture:
    """The experts of DeepSeek V3 and its descendants (https://arxiv.org/abs/2412.19437): a bias corrects their choice,
    and a group's score is the sum of its two highest. ``is_sparse`` defaults to the layers from
    ``first_k_dense_replace`` on. Raises ``CheckpointError``.
    """
    experts = routed_experts(config, fields)
    return Mixture(
        experts,
        grouped_routing(config, experts, 2, scoring=Scoring.SIGMOID, renormalize=bool(config.norm_topk_prob)),
        sparse_from(config, fields["num_layers"]) if is_sparse is None else is_sparse,
        shared_size(config, experts),
        correction_bias=True,
    )


def routed_experts(config: PretrainedConfig, fields: dict[str, Any]) -> ExpertsShape:
    """The routed experts. Raises ``CheckpointError``."""
    return read_experts(config, fields, num_experts="n_routed_experts", intermediate_size="moe_intermediate_size")


def sparse_from(config: PretrainedConfig, num_layers: int) -> tuple[bool, ...]:
    """Whether each layer has experts: those from ``first_k_dense_replace`` on. Raises ``CheckpointError``."""
    first = whole_number(config, "first_k_dense_replace")
    if first > num_layers:
        raise CheckpointError(
            f"first_k_dense_replace={first} is not usable: expected at most num_hidden_layers={num_layers}"
        )
    return tuple(layer >= first for layer in range(num_layers))


def shared_size(config: PretrainedConfig, shape: ExpertsShape) -> int | None:
    """Inner size of the ``n_shared_experts``, which are stored as a single expert; None without any."""
    return shape.intermediate_size * whole_number(config, "n_shared_experts") or None


def grouped_routing(config: PretrainedConfig, shape: ExpertsShape, group_best: int, **options: Any) -> Routing:
    """Routing to experts in the best ``topk_group`` of ``n_group`` groups. Raises ``CheckpointError``."""
    groups, chosen = positive(config, "n_group"), positive(config, "topk_group")
    if shape.num_experts % groups:
        raise CheckpointError(
            f"n_group={groups} is not usable: expected a divisor of n_routed_experts={shape.num_experts}"
        )
    size = shape.num_experts // groups
    if chosen > groups:
        raise CheckpointError(f"topk_group={chosen} is not usable: expected at most n_group={groups}")
    if shape.top_k > chosen * size:
        raise CheckpointError(
            f"num_experts_per_tok={shape.top_k} is not usable: expected at most {chosen * size}, the experts in "
            f"topk_group={chosen} of n_group={groups} groups (n_routed_experts={shape.num_experts})"
        )
    if group_best > size and chosen < groups:
        raise CheckpointError(f"n_group={groups} is not usable: expected groups of at least {group_best} experts")
    scale = positive_number(config, "routed_scaling_factor")
    best = min(group_best, size)
    return Routing(shape.top_k, scale=scale, num_groups=groups, topk_groups=chosen, group_best=best, **options)
