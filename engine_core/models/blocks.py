"""The blocks of many families' layers: multi-head attention, and a gated feed-forward block."""

from __future__ import annotations

from statistics import NormalDist

import torch

from engine_core.activation import Activation
from engine_core.attention.base import AttentionOptions
from engine_core.forward_context import LayerContext
from engine_core.kv_cache_interface import AttentionSpec
from engine_core.layers.attention import HeadNormNames
from engine_core.layers.part_factory import PartFactory
from engine_core.models.model_config import ArchitectureConfig
from engine_core.ops.base import HeadsShape
from engine_core.weights.features import Features


class SelfAttention:
    """Attention with a fused QKV projection, or, over another layer's cache, with one for queries alone."""

    def __init__(
        self,
        config: ArchitectureConfig,
        index: int,
        prefix: str,
        parts: PartFactory,
        *,
        qkv_names: tuple[str, ...] | None = None,
        o_name: str = "o_proj",
        head_norms: HeadNormNames | None = None,
        normalize_values: bool = False,
        gated: bool = False,
        inputs: int | Features | None = None,
    ) -> None:
        """``qkv_names`` and ``head_norms`` default to the configuration's. ``normalize_values``: per head, with weights
        of one. ``gated``: the projection to queries has a gate after each head, whose sigmoid multiplies its output.
        ``inputs``: by default as many as the hidden size.
        """
        shape, norms = heads_shape(config, index), head_norms
        names = (qkv_names or config.qkv_names)[: None if shape.num_kv_heads else 1]
        self.qkv_proj = parts.qkv_linear(
            tuple(f"{prefix}.{name}" for name in names),
            inputs or config.hidden_size,
            shape,
            bias=config.qkv_bias,
            gated=gated,
        )
        attended = Features(shape.num_heads, shape.head_dim)
        self.o_proj = parts.linear(f"{prefix}.{o_name}", attended, config.hidden_size, bias=config.o_bias)
        if config.qk_norm:
            keys = f"{prefix}.k_norm" if shape.num_kv_heads else None
            norms = HeadNormNames(
                f"{prefix}.q_norm", keys, config.norm_eps, config.norm_offset, of_values=normalize_values
            )
        scale = config.softmax_scale or shape.head_dim**-0.5
        options = AttentionOptions(
            scale,
            config.sliding_windows[index],
            config.attn_logit_softcap,
            chunked=config.chunked_attention,
            both_ways=index in config.both_ways,
        )
        self.attn = parts.attention(shape, options, norms, f"{prefix}.sinks" if config.attention_sinks else None)
        own = parts.shares.of_heads(shape)
        self._num_heads = own.num_heads + 2 * own.num_kv_heads
        self._num_projected = self._num_heads + (own.num_heads if gated else 0)
        self._gated = gated
        self._activate = parts.backend.activate
        self._gather_heads = parts.shares.gather_heads(shape.num_heads, shape.head_dim)
        self._residual_scale = config.residual_scale
        self._select_rows = parts.backend.select_rows

    def __call__(self, x: torch.Tensor, context: LayerContext, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[R, H] for the wanted rows of ``x`` [T, H], or [T, H] for all, plus the same rows of ``residual`` [T, H]."""
        return self.attend(self.project(x), context, residual)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values, then gates, if any, [T, Hq + 2 · Hkv (+ Hq), D] of ``x`` [T, H], for this rank's
        heads.
        """
        return self.qkv_proj(x).view(len(x), self._num_projected, -1)

    def attend(self, heads: torch.Tensor, context: LayerContext, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Like ``__call__``, from ``project``'s output."""
        return self.output(self.attended(heads, context), context, residual)

    def attended(self, heads: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """[R, Hq · D] of this rank's heads for the wanted rows of ``project``'s output, gated if there are gates."""
        attended = self._select_rows(self.attn(heads[:, : self._num_heads], context), context.rows)
        if self._gated:
            gates = self._select_rows(heads[:, self._num_heads :].flatten(1), context.rows)
            attended = self._activate(gates, Activation.SIGMOID, attended)
        return attended

    def output(
        self, attended: torch.Tensor, context: LayerContext, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[R, H] of ``attended``'s output, plus the wanted rows of ``residual`` [T, H]."""
        attended = self._gather_heads(attended)
        residual = None if residual is None else self._select_rows(residual, context.rows)
        return self.o_proj(attended, residual, self._residual_scale)


class HeadsNormedAttention:
    """Self-attention whose queries are normalized over all heads together before rotation, and whose keys likewise."""

    def __init__(self, config: ArchitectureConfig, index: int, prefix: str, parts: PartFactory) -> None:
        queries, keys = Features(config.num_heads, config.head_dim), Features(config.num_kv_heads, config.head_dim)
        self.attention = SelfAttention(config, index, prefix, parts)
        self.q_norm = parts.heads_rms_norm(f"{prefix}.q_norm", queries, config.norm_eps)
        self.k_norm = parts.heads_rms_norm(f"{prefix}.k_norm", keys, config.norm_eps)
        own = parts.shares.of_heads(heads_shape(config, index))
        self._queries, self._keys = slice(own.num_heads), slice(own.num_heads, own.num_heads + own.num_kv_heads)

    def __call__(self, x: torch.Tensor, context: LayerContext, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Like ``SelfAttention``."""
        heads = self.attention.project(x)
        self.q_norm.in_place(heads[:, self._queries].flatten(1))
        self.k_norm.in_place(heads[:, self._keys].flatten(1))
        return self.attention.attend(heads, context, residual)


def heads_shape(config: ArchitectureConfig, index: int) -> HeadsShape:
    """The heads of layer ``index``: only query heads if it attends over another layer's cache."""
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
        parts: PartFactory,
        *,
        intermediate_size: int | None = None,
        down_name: str = "down_proj",
        sparsity: float = 0.0,
    ) -> None:
        """``intermediate_size`` defaults to the configuration's. ``sparsity``: the share of gates below a cutoff, were
        they distributed normally; of the others, the cutoff is subtracted.
        """
        hidden, inner = config.hidden_size, intermediate_size or config.intermediate_size
        names = tuple(f"{prefix}.{name}" for name in config.gate_up_names)
        self.gate_up_proj = parts.merged_linear(names, hidden, inner, bias=config.mlp_bias)
        self.down_proj = parts.linear(f"{prefix}.{down_name}", inner, hidden, bias=config.mlp_bias)
        self._activation = config.activation
        self._act_and_mul = parts.backend.act_and_mul
        self._gather_columns = parts.shares.gather_columns(inner)
        self._residual_scale = config.residual_scale
        self._inner = inner
        self._cut_off = parts.backend.stream_ops().cut_off
        self._deviations: float | None = None
        if sparsity > 0:  # rounded to the model's type, as in transformers
            self._deviations = torch.tensor(NormalDist().inv_cdf(sparsity), dtype=parts.dtype).item()

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[T, H] for ``x`` [T, H], plus ``residual`` if given."""
        gate_up = self.gate_up_proj(x)
        if self._deviations is not None:
            gate = gate_up[:, : gate_up.shape[1] // 2]
            self._cut_off(gate, self._gather_columns(gate), self._inner, self._deviations)
        inner = self._gather_columns(self._act_and_mul(gate_up, self._activation))
        return self.down_proj(inner, residual, self._residual_scale)
