"""Linear layers on NVIDIA GPUs whose weights stay quantized (W4A16, W8A16): by our own batch-invariant kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from engine_core.kernels.triton import AS_WRITTEN
from engine_core.kernels.triton.quantized import multiply_quantized
from engine_core.ops.base import LinearOp
from engine_core.ops.gpu_linear import ProductTiles
from engine_core.weights.quantized_weight import Offset, QuantFormat, QuantizedWeight


class GpuQuantizedLinear(LinearOp):
    """Computes the result of the weight expanded to the input's type. A row's result depends on that row alone."""

    def __init__(
        self,
        kept: QuantFormat,
        outputs: int,
        inputs: int,
        dtype: torch.dtype,
        parts: Iterable[QuantizedWeight],
        bias: torch.Tensor | None,
        input_order: torch.Tensor | None,
        device: torch.device,
        processors: int,
    ) -> None:
        """Copy ``parts`` to ``device``; ``inputs`` is even. ``processors``: multiprocessors of the device."""
        self.out_features, self.in_features = outputs, inputs
        self._dtype = dtype
        # Two-level scales are multiplied once, here.
        self._kept = kept if kept.outer_size is None else replace(kept, outer_size=None, scale_dtype=torch.float32)
        groups, self._packed = -(-inputs // kept.group_size), 2 if kept.bits == 4 else 1
        self._codes = torch.empty(outputs, inputs // self._packed, dtype=torch.uint8, device=device)
        self._scales = torch.empty(outputs, groups, dtype=self._kept.scale_dtype, device=device)
        of_zeros = torch.uint8 if kept.offset is Offset.ZERO else self._kept.scale_dtype
        self._offsets = None if kept.offset is Offset.NONE else torch.empty_like(self._scales, dtype=of_zeros)
        self._codebook = torch.tensor(kept.codebook, device=device)
        self._bias = None if bias is None else bias.clone()
        self._input_order = None if input_order is None else input_order.to(device)
        tiles = ProductTiles.of(outputs, dtype.itemsize)
        # A step along the inputs stays within one group, where the group size allows it.
        depth = next((size for size in (tiles.depth, 32, 16) if kept.group_size % size == 0), 32)
        self._tiles = replace(tiles, columns=min(tiles.columns, 64), depth=depth)
        self._programs = 2 * processors
        first = 0
        for part in parts:
            rows = slice(first, first := first + len(part.codes))
            self._codes[rows] = part.codes if self._packed == 1 else part.codes[:, ::2] | part.codes[:, 1::2] << 4
            self._scales[rows] = part.group_scales()
            offsets = part.group_minima() if part.zeros is None else part.zeros
            if self._offsets is not None and offsets is not None:
                self._offsets[rows] = offsets

    @property
    def nbytes(self) -> int:
        kept = (self._codes, self._scales, self._offsets, self._codebook, self._bias, self._input_order)
        return sum(each.nbytes for each in kept if each is not None)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = x.contiguous() if self._input_order is None else x[:, self._input_order]
        output = into
        if output is None:
            output = torch.empty(len(x), self.out_features, dtype=dtype or x.dtype, device=x.device)
        tiles, kept = self._tiles, self._kept
        count = -(-len(x) // tiles.rows) * -(-self.out_features // tiles.columns)
        multiply_quantized[(min(count, self._programs),)](
            x,
            self._codes,
            self._codebook,
            self._scales,
            self._scales if self._offsets is None else self._offsets,
            self._scales if self._bias is None else self._bias,
            x if residual is None else residual,
            output,
            len(x),
            0 if residual is None else residual.stride(0),
            output.stride(0),
            OUTPUTS=self.out_features,
            INPUTS=self.in_features,
            GROUPS=self._scales.shape[1],
            GROUP_SIZE=kept.group_size,
            NIBBLES=self._packed == 2,
            LINEAR=kept.is_linear,
            FIRST=kept.codebook[0],
            ZEROS=kept.offset is Offset.ZERO,
            MINIMA=kept.offset is Offset.MINIMUM,
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            DEPTH=tiles.depth,
            BIASED=self._bias is not None,
            ADDED=residual is not None,
            IEEE=x.dtype == torch.float32,
            WIDE=x.device.type == "cpu",  # under Triton's interpreter
            SCALE=scale,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **AS_WRITTEN,
        )
        return output

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        codes = self._codes[indices]
        if self._packed == 2:
            codes = torch.stack([codes & 15, codes >> 4], 2).flatten(1)
        offsets = None if self._offsets is None else self._offsets[indices]
        zeros, minima = (offsets, None) if self._kept.offset is Offset.ZERO else (None, offsets)
        kept = QuantizedWeight(self._kept, codes, self._scales[indices], zeros=zeros, minima=minima)
        rows = kept.dequantized(self._codebook)
        return (rows if self._input_order is None else rows[:, self._input_order.argsort()]).to(self._dtype)
