"""What models with multi-head latent attention share: its sizes, its projections, and what their cache holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import Angles, AttentionMetadata
from engine_core.errors import CheckpointError
from engine_core.kv_cache_interface import LayerCacheSpec, MLAAttentionSpec
from engine_core.layers.mla import MLAShape
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import RopeParameters, read_number, yarn_scale
from engine_core.models.mixture import Mixture
from engine_core.models.model_config import ArchitectureConfig, common_fields, positive
from engine_core.quantization.base import Features

_LATENT_EPS = 1e-6
"""The epsilon of the norms of latents; ``rms_norm_eps`` is that of the other norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig(ArchitectureConfig):
    """``num_kv_heads`` and ``head_dim`` are those of the cache: one head, and its rotated part."""

    mla: MLAShape
    q_lora_rank: int | None
    """Numbers of the latent that queries are made from; None: they are made from hidden states."""
    attention_bias: bool
    mixture: Mixture

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec, ...]:
        return (MLAAttentionSpec(self.mla.kv_lora_rank, self.mla.qk_rope_head_dim),) * self.num_layers


def latent_fields(config: PretrainedConfig, *, interleaved: bool) -> dict[str, Any]:
    """The fields of ``LatentConfig`` but ``mixture``. Raises ``CheckpointError``."""
    nope, rope = positive(config, "qk_nope_head_dim"), positive(config, "qk_rope_head_dim")
    if rope % 2:
        raise CheckpointError(f"qk_rope_head_dim={rope} is not an even number")
    fields = common_fields(config, head_dim=rope)
    if fields["num_kv_heads"] != fields["num_heads"]:
        raise CheckpointError(
            f"num_key_value_heads={fields['num_kv_heads']} is not usable with latent attention: expected "
            f"num_attention_heads={fields['num_heads']}"
        )
    shape = MLAShape(
        fields["num_heads"], positive(config, "kv_lora_rank"), nope, rope, positive(config, "v_head_dim"), interleaved
    )
    ropes = tuple(each and replace(each, interleaved=interleaved) for each in fields["ropes"])
    return fields | {
        "num_kv_heads": 1,
        "ropes": ropes,
        "mla": shape,
        "q_lora_rank": None if config.q_lora_rank is None else positive(config, "q_lora_rank"),
        "attention_bias": bool(config.attention_bias),
        "softmax_scale": _softmax_scale(config.rope_parameters or {}, ropes, nope + rope),
    }


def _softmax_scale(parameters: Mapping[str, Any], ropes: tuple[RopeParameters | None, ...], head_dim: int) -> float:
    """1 / √head size, times the square of YaRN's factor for all dimensions, where there is one.

    Every type of rotation has it but ``default``, also ``dynamic``, whose angles no factor changes here.
    """
    scale, weight = 1 / math.sqrt(head_dim), parameters.get("mscale_all_dim")
    rope = next((each for each in ropes if each is not None), None)
    if rope is None or rope.rope_type == "default" or not weight:
        return scale
    if parameters.get("factor") is None:
        raise CheckpointError(f"rope_parameters: mscale_all_dim={weight} needs a factor: set factor")
    return scale * yarn_scale(read_number(parameters, "mscale_all_dim"), read_number(parameters, "factor")) ** 2


class LatentAttention:
    """Queries through a latent of their own or none; keys and values through the one that is cached."""

    def __init__(self, config: LatentConfig, prefix: str, layers: PartFactory) -> None:
        shape, hidden = config.mla, Features(1, config.hidden_size)
        latents = (shape.kv_lora_rank, shape.qk_rope_head_dim)
        names, rows, outputs = [f"{prefix}.kv_a_proj_with_mqa"], [sum(latents)], list(latents)
        if (rank := config.q_lora_rank) is not None:
            names, rows, outputs = [f"{prefix}.q_a_proj", *names], [rank, *rows], [rank, *outputs]
            self.q_a_norm = layers.rms_norm(f"{prefix}.q_a_layernorm", Features(1, rank), _LATENT_EPS)
        # One projection of hidden states to both latents.
        self.a_proj = layers.linear(
            tuple(names),
            tuple(rows),
            hidden,
            Features(1, sum(outputs), parts=tuple(outputs)),
            bias=config.attention_bias,
        )
        self.kv_a_norm = layers.rms_norm(f"{prefix}.kv_a_layernorm", Features(1, shape.kv_lora_rank), _LATENT_EPS)
        q_name, q_inputs = ("q_proj", hidden) if rank is None else ("q_b_proj", Features(1, rank))
        self.q_proj = layers.linear(
            (f"{prefix}.{q_name}",), (shape.queries.count,), q_inputs, shape.queries, bias=False
        )
        assert config.softmax_scale is not None
        self.attn = layers.latent_attention(f"{prefix}.kv_b_proj", shape, config.softmax_scale)
        self.o_proj = layers.column_parallel_linear(
            f"{prefix}.o_proj", Features(shape.num_heads, shape.v_head_dim), config.hidden_size, config.attention_bias
        )
        self._num_heads = shape.num_heads
        self._split = [layers.backend.padded(size) for size in outputs]
        self._select_rows = layers.select_rows

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        angles: Angles | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        *query_latent, latent, rope = torch.split(self.a_proj(x), self._split, dim=1)
        queries = self.q_proj(self.q_a_norm(query_latent[0]) if query_latent else x)
        heads = queries.view(len(x), self._num_heads, -1)
        attended = self.attn(heads, self.kv_a_norm(latent), rope, angles, kv_cache, metadata)
        if rows is not None:
            attended = self._select_rows(attended, rows)
            residual = None if residual is None else self._select_rows(residual, rows)
        return self.o_proj(attended, residual)
