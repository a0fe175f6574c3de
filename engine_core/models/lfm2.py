"""LFM2 (https://arxiv.org/abs/2511.23404): short convolutions in most layers, attention in the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.activation import Activation
from engine_core.distributed.ranks import UNIT
from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, ShortConvSpec, StateSpec
from engine_core.layers.attention import HeadNormNames
from engine_core.layers.norm import RMSNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.model_config import (
    MOST,
    MOST_LAYERS,
    ArchitectureConfig,
    common_fields,
    layer_types,
    positive,
    positive_number,
)
from engine_core.models.short_conv import GatedShortConv

CONV, FULL = "conv", "full_attention"
_MOST_TAPS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2Config(ArchitectureConfig):
    """Which layers attend, and the convolutions of the others."""

    attends: tuple[bool, ...]
    conv_taps: int
    conv_bias: bool

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec | None, ...]:
        spec = AttentionSpec(self.num_kv_heads, self.head_dim)
        return tuple(spec if attends else None for attends in self.attends)

    @property
    def state_fields(self) -> Mapping[str, str]:
        return {"channels": "hidden_size"}

    @property
    def conv_spec(self) -> ShortConvSpec:
        """The state of a convolution."""
        return ShortConvSpec(self.hidden_size, self.conv_taps - 1)

    @property
    def state_specs(self) -> tuple[StateSpec | None, ...]:
        return tuple(None if attends else self.conv_spec for attends in self.attends)

    def _require_shares(self, size: int, expert_parallel: bool) -> None:
        ArchitectureConfig._require_shares(self, size, expert_parallel)
        if not all(self.attends) and self.hidden_size % (UNIT * size):
            accepted = f"a number of equal shares of hidden_size={self.hidden_size}, each a multiple of {UNIT}"
            raise ConfigError("tensor_parallel_size", size, accepted)


def lfm2_operator(config: Lfm2Config, index: int, prefix: str, parts: PartFactory) -> SelfAttention | GatedShortConv:
    """What mixes tokens in layer ``index``."""
    if not config.attends[index]:
        return lfm2_conv(config, prefix, parts)
    attention = f"{prefix}.self_attn"
    norms = HeadNormNames(f"{attention}.q_layernorm", f"{attention}.k_layernorm", config.norm_eps)
    return SelfAttention(config, index, attention, parts, o_name="out_proj", head_norms=norms)


def lfm2_conv(config: Lfm2Config, prefix: str, parts: PartFactory) -> GatedShortConv:
    """The convolution of the layer with that prefix."""
    return GatedShortConv(config.conv_spec, config.hidden_size, f"{prefix}.conv", parts, bias=config.conv_bias)


class Lfm2Layer:
    """Attention or a convolution, then a feed-forward block, each with a norm before it and a residual."""

    def __init__(self, config: Lfm2Config, index: int, prefix: str, parts: PartFactory) -> None:
        hidden, eps = config.hidden_size, config.norm_eps
        self.operator = lfm2_operator(config, index, prefix, parts)
        self.feed_forward = GatedMLP(config, f"{prefix}.feed_forward", parts, down_name="w2")
        self.operator_norm = parts.rms_norm(f"{prefix}.operator_norm", hidden, eps)
        self.ffn_norm = parts.rms_norm(f"{prefix}.ffn_norm", hidden, eps)

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        hidden = self.operator(self.operator_norm(hidden), context, residual=hidden)
        return self.feed_forward(self.ffn_norm(hidden), residual=hidden)


class Lfm2Model(CausalLM):
    """The last norm has a name of its own."""

    config: Lfm2Config

    def make_norm(self, parts: PartFactory) -> RMSNorm:
        config = self.config
        return parts.rms_norm(f"{self.prefix}.embedding_norm", config.hidden_size, config.norm_eps)


class Lfm2ForCausalLM(Lfm2Model):
    """The size of feed-forward blocks may be derived from the one given."""

    model_type = "lfm2"
    layer_class = Lfm2Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Lfm2Config:
        return Lfm2Config(**lfm2_fields(config, (CONV, FULL)) | {"intermediate_size": _feed_forward_size(config)})


def lfm2_fields(config: PretrainedConfig, known: tuple[str, ...], **options: Any) -> dict[str, Any]:
    """The fields of ``Lfm2Config``; ``options`` of ``common_fields``, ``known`` types of layers.

    Raises ``CheckpointError``, ``UnsupportedModelError``.
    """
    kinds = layer_types(config, positive(config, "num_hidden_layers", MOST_LAYERS))
    if unknown := sorted({*kinds} - {*known}):
        raise UnsupportedModelError(
            f"layer_types: {', '.join(unknown)} is not supported: expected {', '.join(known[:-1])} or {known[-1]}"
        )
    if (taps := positive(config, "conv_L_cache", _MOST_TAPS)) < 2:
        raise CheckpointError(f"conv_L_cache={taps} is not usable: expected at least 2 tokens")
    fields = common_fields(config, activation=Activation.SILU, norm_eps="norm_eps", unrotated=(CONV,), **options)
    return fields | {
        "attends": tuple(kind != CONV for kind in kinds),
        "conv_taps": taps,
        "conv_bias": bool(config.conv_bias),
        "gate_up_names": ("w1", "w3"),
    }


def _feed_forward_size(config: PretrainedConfig) -> int:
    """Two thirds of ``intermediate_size`` times a factor, rounded up, if ``block_auto_adjust_ff_dim``."""
    size = positive(config, "intermediate_size")
    if not config.block_auto_adjust_ff_dim:
        return size
    unit, factor = positive(config, "block_multiple_of"), positive_number(config, "block_ffn_dim_multiplier")
    adjusted = unit * -(-int(factor * int(2 * size / 3)) // unit)
    if not 1 <= adjusted <= MOST:
        raise CheckpointError(
            f"intermediate_size={size} is not usable: expected one that block_ffn_dim_multiplier={factor:g} and "
            f"block_multiple_of={unit} make a size from 1 to {MOST}, and not {adjusted}"
        )
    return adjusted
