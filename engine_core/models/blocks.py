"""What the layers of decoders are made of: attention, feed-forward blocks, and norms before and after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine_core.attention.base import Angles, AttentionMetadata
from engine_core.kv_cache_interface import AttentionSpec
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.parts import HeadNormNames, Norm
from engine_core.models.model_config import ArchitectureConfig
from engine_core.ops.base import HeadsShape
from engine_core.quantization.base import Features


class TokenMixer(Protocol):
    """Attention of any kind."""

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        angles: Angles | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] of ``rows`` of ``x`` [T, H], or [T, H] of all, plus those rows of ``residual`` [T, H] if given."""


class FeedForward(Protocol):
    """A feed-forward block of any kind."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """[T, H]: the output for ``x`` [T, H], plus ``residual`` if given."""


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """The norms of a layer; None where there is none."""

    before_attention: Norm | None = None
    after_attention: Norm | None = None
    before_mlp: Norm | None = None
    after_mlp: Norm | None = None


class TransformerLayer:
    """h + after(attention(before(h))), then the same with the feed-forward block."""

    def __init__(self, attention: TokenMixer, mlp: FeedForward, norms: LayerNorms, layers: PartFactory) -> None:
        self._attention = attention
        self._mlp = mlp
        self._norms = norms
        self._select_rows = layers.select_rows

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: Angles | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        norms = self._norms
        x = hidden if norms.before_attention is None else norms.before_attention(hidden)
        if norms.after_attention is None:
            hidden = self._attention(x, hidden, angles, kv_cache, metadata, rows)
        else:
            attended = self._attention(x, None, angles, kv_cache, metadata, rows)
            residual = hidden if rows is None else self._select_rows(hidden, rows)
            hidden = norms.after_attention(attended, residual)
        x = hidden if norms.before_mlp is None else norms.before_mlp(hidden)
        return self._mlp(x, hidden) if norms.after_mlp is None else norms.after_mlp(self._mlp(x, None), hidden)


class PostNormLayer:
    """norm(h + attention(h)), then the same with the feed-forward block (https://arxiv.org/abs/1706.03762)."""

    def __init__(self, attention: TokenMixer, attention_norm: Norm, mlp: FeedForward, mlp_norm: Norm) -> None:
        self._attention = attention
        self._attention_norm = attention_norm
        self._mlp = mlp
        self._mlp_norm = mlp_norm

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: Angles | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        hidden = self._attention_norm(self._attention(hidden, hidden, angles, kv_cache, metadata, rows))
        return self._mlp_norm(self._mlp(hidden, hidden))


def pre_norms(prefix: str, config: ArchitectureConfig, layers: PartFactory) -> LayerNorms:
    """Llama's: one before attention, one before the feed-forward block."""
    hidden = Features(1, config.hidden_size)
    return LayerNorms(
        before_attention=layers.rms_norm(f"{prefix}.input_layernorm", hidden, config.norm_eps),
        before_mlp=layers.rms_norm(f"{prefix}.post_attention_layernorm", hidden, config.norm_eps),
    )


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """In what the attention of families differs."""

    qkv_bias: bool = False
    o_bias: bool = False
    head_norms: HeadNormNames | None = None
    qkv_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    o_name: str = "o_proj"


class SelfAttention:
    """Attention with one fused projection for queries, keys and values, or, over another layer's cache, for queries."""

    def __init__(
        self,
        config: ArchitectureConfig,
        index: int,
        prefix: str,
        layers: PartFactory,
        variant: AttentionVariant = AttentionVariant(),
    ) -> None:
        shape = heads_shape(config, index)
        names = variant.qkv_names if shape.num_kv_heads else variant.qkv_names[:1]
        self.qkv_proj = layers.qkv_parallel_linear(
            prefix,
            config.hidden_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            variant.qkv_bias,
            names,
        )
        self.o_proj = layers.column_parallel_linear(
            f"{prefix}.{variant.o_name}",
            Features(shape.num_heads, shape.head_dim),
            config.hidden_size,
            variant.o_bias,
        )
        self.attn = layers.attention(
            shape,
            config.sliding_windows[index],
            variant.head_norms,
            scale=config.softmax_scale,
            logit_softcap=config.attn_logit_softcap,
            sinks=f"{prefix}.sinks" if config.attention_sinks else None,
        )
        self._residual_scale = config.residual_scale
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
        attended = self.attn(self.project(x), angles, kv_cache, metadata)
        if rows is not None:
            attended = self._select_rows(attended, rows)
            residual = None if residual is None else self._select_rows(residual, rows)
        return self.o_proj(attended, residual, self._residual_scale)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values [T, Hq + 2 · Hkv, D] of ``x`` [T, H]."""
        return self.qkv_proj.heads(x)


def heads_shape(config: ArchitectureConfig, index: int) -> HeadsShape:
    """The heads of layer ``index``: queries alone where another layer writes what it attends over."""
    rope, spec = config.ropes[index], config.cache_specs[index]
    assert isinstance(spec, AttentionSpec)
    return HeadsShape(
        config.num_heads,
        spec.num_kv_heads if config.cache_owners[index] == index else 0,
        spec.head_dim,
        rotary_dim=0 if rope is None else rope.rotary_dim,
        interleaved=rope is not None and rope.interleaved,
    )


class GatedMLP:
    """down(f(gate(x)) · up(x)) (SwiGLU and GeGLU, https://arxiv.org/abs/2002.05202), gate and up in one projection."""

    def __init__(
        self,
        config: ArchitectureConfig,
        prefix: str,
        layers: PartFactory,
        *,
        intermediate_size: int | None = None,
        bias: bool = False,
        names: tuple[str, ...] = ("gate_proj", "up_proj"),
    ) -> None:
        """``intermediate_size`` is the configuration's unless given."""
        hidden, inner = config.hidden_size, intermediate_size or config.intermediate_size
        self.gate_up_proj = layers.merged_column_parallel_linear(prefix, names, hidden, inner, bias)
        self.down_proj = layers.column_parallel_linear(f"{prefix}.down_proj", Features(1, inner), hidden, bias)
        self._activation = config.activation
        self._act_and_mul = layers.act_and_mul
        self._residual_scale = config.residual_scale

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        inner = self._act_and_mul(self.gate_up_proj(x), self._activation)
        return self.down_proj(inner, residual, self._residual_scale)


class MLP:
    """down(f(up(x)))."""

    def __init__(
        self, config: ArchitectureConfig, prefix: str, layers: PartFactory, *, names: tuple[str, str], bias: bool
    ) -> None:
        """``names`` of the two projections."""
        (up, down), hidden, inner = names, config.hidden_size, config.intermediate_size
        self.up_proj = layers.column_parallel_linear(f"{prefix}.{up}", Features(1, hidden), inner, bias)
        self.down_proj = layers.column_parallel_linear(f"{prefix}.{down}", Features(1, inner), hidden, bias)
        self._activation = config.activation
        self._activate = layers.activate
        self._residual_scale = config.residual_scale

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        inner = self._activate(self.up_proj(x), self._activation)
        return self.down_proj(inner, residual, self._residual_scale)
