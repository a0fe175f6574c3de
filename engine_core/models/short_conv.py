"""The gated short convolution of LFM2: of three projections of a row, one is convolved over a few tokens."""

from __future__ import annotations

import torch

from engine_core.forward_context import LayerContext
from engine_core.kv_cache_interface import ShortConvSpec
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.states import Channels
from engine_core.weights.features import Features


class GatedShortConv:
    """out(C · conv(B · x)) for the projections B, C and x of a row."""

    def __init__(self, spec: ShortConvSpec, hidden_size: int, prefix: str, parts: PartFactory, *, bias: bool) -> None:
        """``spec``: the state of all ranks."""
        count = spec.channels
        own = parts.shares.columns(count)
        taken = [range(before + own.start, before + own.stop) for before in (0, count, 2 * count)]
        self.in_proj = parts.rows_linear(
            (f"{prefix}.in_proj",), hidden_size, Features(3, len(own)), taken, rows=(3 * count,), bias=bias
        )
        channels = Channels(count, (own,), Features(1, len(own)))
        self.conv = parts.short_convolution(f"{prefix}.conv", channels, spec.conv_width + 1, bias=bias)
        self.out_proj = parts.linear(f"{prefix}.out_proj", count, hidden_size, bias=bias)
        self._gather_columns = parts.shares.gather_columns(count)
        self._select_rows = parts.backend.select_rows

    def __call__(self, x: torch.Tensor, context: LayerContext, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[R, H] for the wanted rows of ``x`` [T, H], or [T, H] for all, plus the same rows of ``residual`` [T, H]."""
        gate, output_gate, inputs = self.in_proj(x).chunk(3, dim=1)
        mixed = self._select_rows(self.conv(inputs, context, gate=gate, output_gate=output_gate), context.rows)
        residual = None if residual is None else self._select_rows(residual, context.rows)
        return self.out_proj(self._gather_columns(mixed), residual)
