"""LFM3: LFM2's layers with norms after the blocks, too; windows in some layers, and a gate for each head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import LayerContext
from engine_core.layers.norm import RMSNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.lfm2 import CONV, FULL, Lfm2Config, Lfm2Model, lfm2_conv, lfm2_fields
from engine_core.models.model_config import layer_types, sliding_window
from engine_core.models.short_conv import GatedShortConv
from engine_core.weights.features import Features

_WINDOW = "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm3Config(Lfm2Config):
    """What is optional in LFM3."""

    head_gates: bool
    norms_after: bool
    """Whether there are norms after the blocks, too."""


class HeadGatedAttention:
    """Attention whose heads are each multiplied by the sigmoid of a projection to one number."""

    def __init__(self, config: Lfm3Config, index: int, prefix: str, parts: PartFactory) -> None:
        self.attention = SelfAttention(config, index, prefix, parts)
        gates = Features(config.num_heads, 1, fixed=True)
        self.gate_proj = parts.heads_linear(f"{prefix}.gate_proj", config.hidden_size, gates)
        self._add_gated, self._select_rows = parts.backend.add_gated, parts.backend.select_rows

    def __call__(self, x: torch.Tensor, context: LayerContext, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Like ``SelfAttention``."""
        attended = self.attention.attended(self.attention.project(x), context)
        gates = self.gate_proj.logits(self._select_rows(x, context.rows))
        return self.attention.output(self._add_gated(attended, gates, None), context, residual)


class Lfm3Layer:
    """Attention or a convolution, then a feed-forward block, each with a residual, and with a norm before it and
    perhaps after it.
    """

    def __init__(self, config: Lfm3Config, index: int, prefix: str, parts: PartFactory) -> None:
        def norm(name: str) -> RMSNorm:
            return parts.rms_norm(f"{prefix}.{name}", config.hidden_size, config.norm_eps)

        self.operator = _operator(config, index, prefix, parts)
        self.feed_forward = GatedMLP(config, f"{prefix}.feed_forward", parts, down_name="w2")
        self.operator_norm, self.ffn_norm = norm("operator_norm"), norm("ffn_norm")
        self.post_operator_norm, self.post_ffn_norm = None, None
        if config.norms_after:
            self.post_operator_norm, self.post_ffn_norm = norm("post_operator_norm"), norm("post_ffn_norm")
        self._select_rows = parts.backend.select_rows

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        if self.post_operator_norm is None or self.post_ffn_norm is None:
            hidden = self.operator(self.operator_norm(hidden), context, residual=hidden)
            return self.feed_forward(self.ffn_norm(hidden), residual=hidden)
        mixed = self.operator(self.operator_norm(hidden), context)
        hidden = self.post_operator_norm(mixed, residual=self._select_rows(hidden, context.rows))
        return self.post_ffn_norm(self.feed_forward(self.ffn_norm(hidden)), residual=hidden)


def _operator(
    config: Lfm3Config, index: int, prefix: str, parts: PartFactory
) -> SelfAttention | HeadGatedAttention | GatedShortConv:
    if not config.attends[index]:
        return lfm2_conv(config, prefix, parts)
    if config.head_gates:
        return HeadGatedAttention(config, index, f"{prefix}.self_attn", parts)
    return SelfAttention(config, index, f"{prefix}.self_attn", parts)


class Lfm3ForCausalLM(Lfm2Model):
    """Each type of attention has its own rotation."""

    model_type = "lfm3"
    layer_class = Lfm3Layer

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Lfm3Config:
        fields = lfm2_fields(config, (CONV, FULL, _WINDOW), partial_rotary=True)
        _require_whole_heads(config)
        kinds, window = layer_types(config, fields["num_layers"]), sliding_window(config)
        if _WINDOW in kinds and window is None:
            raise CheckpointError(
                f"layer_types has {_WINDOW}, but no window is set: set sliding_window to a number of tokens"
            )
        biased = bool(config.attention_bias)
        return Lfm3Config(
            **fields | {"sliding_windows": tuple(window if kind == _WINDOW else None for kind in kinds)},
            qkv_bias=biased,
            o_bias=biased,
            qk_norm=True,
            head_gates=bool(config.use_attention_gate),
            norms_after=bool(config.use_sandwich_norm),
        )


def _require_whole_heads(config: PretrainedConfig) -> None:
    """Raise ``UnsupportedModelError`` for a share of heads with rope type ``default``, for which it is not read."""
    for kind, rope in config.rope_parameters.items():
        factor = rope.get("partial_rotary_factor", 1.0) if isinstance(rope, dict) else 1.0
        if factor != 1.0 and rope.get("rope_type") == "default":
            raise UnsupportedModelError(
                f"partial_rotary_factor={factor!r} is not supported for {kind} with rope type 'default': expected 1, "
                "as that rotates whole heads"
            )
