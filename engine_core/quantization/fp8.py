"""FP8: weights as numbers of 8 bits (E4M3, https://arxiv.org/abs/2209.05433), with a scale for each tensor, output or
block of 128 × 128.

Inputs are not rounded, so scales of activations are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine_core.errors import CheckpointError
from engine_core.quantization.config_fields import ConfigFields, is_linear
from engine_core.quantization.packing import some_rows, take, take_scales
from engine_core.quantization.schemes import Scheme, SchemesConfig, Tensors, is_listed, scale_dtype
from engine_core.weights.quantized_weight import FP8, QuantFormat, QuantizedWeight
from engine_core.weights.source import TensorRows, Weights

SCALES = ("weight_scale_inv", "weight_scale")
"""Names of scales; weights are multiplied by either."""
_NAN = 0x7F
"""Without the sign."""


@dataclass(frozen=True, slots=True)
class Fp8Scheme(Scheme):
    """Unpacked numbers [N, K]."""

    scale_name: str
    scale_dtype: torch.dtype
    scale_shape: tuple[int, ...]
    """[] or [1] for the tensor, [N] or [N, 1] for each output; of blocks: [⌈N / rows⌉, ⌈K / columns⌉]."""
    block: tuple[int, int] | None = None
    """Rows and columns of a block, if scales are of blocks."""

    def format(self, inputs: int) -> QuantFormat:
        return QuantFormat(FP8, inputs if self.block is None else self.block[1], self.scale_dtype)

    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        if self.block is not None:
            scales: tuple[int, ...] = (-(-outputs // self.block[0]), -(-inputs // self.block[1]))
        else:
            scales = self.scale_shape if self.scale_shape in ((), (1,)) else (outputs, 1)[: len(self.scale_shape)]
        return {f"{name}.weight": (outputs, inputs), f"{name}.{self.scale_name}": scales}

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        kept = self.format(inputs)
        for rows in some_rows(piece.rows, inputs):
            place = slice(rows.start, rows.stop)
            codes = take(weights, f"{piece.name}.weight", (torch.float8_e4m3fn,), place).view(torch.uint8)
            if ((codes & _NAN) == _NAN).any():
                raise CheckpointError(f"{piece.name}.weight has NaNs: download the checkpoint again")
            yield QuantizedWeight(kept, codes, self._scales(f"{piece.name}.{self.scale_name}", rows, weights))

    def _scales(self, name: str, rows: range, weights: Weights) -> torch.Tensor:
        """[``rows``, G]."""
        if self.block is not None:
            first, last = rows.start // self.block[0], -(-rows.stop // self.block[0])
            of_blocks = take_scales(weights, name, self.scale_dtype, slice(first, last))
            blocks = torch.arange(rows.start, rows.stop) // self.block[0] - first
            return of_blocks[blocks]
        if self.scale_shape in ((), (1,)):
            return take_scales(weights, name, self.scale_dtype).reshape(1, 1).repeat(len(rows), 1)
        return take_scales(weights, name, self.scale_dtype, slice(rows.start, rows.stop)).reshape(-1, 1)


class Fp8Config(SchemesConfig):
    """Quantizes linear layers of decoder layers, except those listed."""

    def __init__(self, fields: Mapping[str, Any], tensors: Tensors) -> None:
        super().__init__()
        known = ConfigFields("FP8", fields)
        known.one_of("fmt", ("e4m3", "float8_e4m3fn", None))
        known.one_of("activation_scheme", ("dynamic", "static", None))
        self._block = known.pair("weight_block_size")
        self._exceptions = known.strings("modules_to_not_convert") + known.strings("ignored_layers")
        self._tensors = tensors
        self._scale_dtype = scale_dtype(tensors, SCALES, torch.float32)

    def scheme(self, name: str) -> Fp8Scheme | None:
        return fp8_scheme(name, self._tensors, self._block, self._scale_dtype, otherwise=self._is_meant(name))

    def _is_meant(self, name: str) -> bool:
        return is_linear(name) and not is_listed(name, self._exceptions)

    def describe(self) -> str:
        return "FP8" if self._block is None else f"FP8 in blocks of {self._block[0]} × {self._block[1]}"


def fp8_scheme(
    name: str, tensors: Tensors, block: tuple[int, int] | None, dtype: torch.dtype, *, otherwise: bool
) -> Fp8Scheme | None:
    """The scheme of layer ``name``, by its weight's type; ``otherwise``: whether it has one if no file says."""
    if (weight := tensors.get(f"{name}.weight")) is not None and weight.dtype != torch.float8_e4m3fn:
        return None
    if weight is None and not otherwise:
        return None
    found = next((each for each in SCALES if f"{name}.{each}" in tensors), SCALES[0 if block is not None else 1])
    shape = tensors[f"{name}.{found}"].shape if f"{name}.{found}" in tensors else (1,)
    return Fp8Scheme(found, dtype, shape, block)
