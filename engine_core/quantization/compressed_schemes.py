"""How compressed-tensors stores single layers: integers, packed or not, and numbers of 4 bits (FP4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine_core.errors import CheckpointError
from engine_core.quantization.packing import (
    columns_of,
    fields_of,
    nibbles_of,
    order_of_groups,
    some_rows,
    take,
    take_powers,
    take_scales,
)
from engine_core.quantization.schemes import Scheme
from engine_core.weights.quantized_weight import (
    FP4,
    SIGNED4,
    SIGNED8,
    UNSIGNED4,
    UNSIGNED8,
    Offset,
    QuantFormat,
    QuantizedWeight,
)
from engine_core.weights.source import TensorRows, Weights

FP4_FORMATS = {"nvfp4-pack-quantized": 16, "mxfp4-pack-quantized": 32}
"""Inputs of a group."""


def integer_format(bits: int, group_size: int, symmetric: bool, scale_dtype: torch.dtype) -> QuantFormat:
    """The format of integer codes, shifted so that the least is 0."""
    if symmetric:
        return QuantFormat(SIGNED4 if bits == 4 else SIGNED8, group_size, scale_dtype)
    return QuantFormat(UNSIGNED4 if bits == 4 else UNSIGNED8, group_size, scale_dtype, offset=Offset.ZERO)


@dataclass(frozen=True, slots=True)
class PackedScheme(Scheme):
    """``weight_packed`` [N, K · bits / 32]: a word holds codes of neighbouring inputs, from the lowest bits on.

    ``weight_zero_point`` [N · bits / 32, G] is packed along outputs.
    """

    bits: int
    group_size: int | None
    """None: all inputs."""
    symmetric: bool
    scale_dtype: torch.dtype
    tensor_scale: tuple[int, ...] | None = None
    """Shape of the single scale of a tensor; None: a scale per group."""
    has_order: bool = False
    """Whether ``weight_g_idx`` [K] names each input's group."""

    def format(self, inputs: int) -> QuantFormat:
        return integer_format(self.bits, self.group_size or inputs, self.symmetric, self.scale_dtype)

    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        groups = -(-inputs // (self.group_size or inputs))
        found: dict[str, tuple[int, ...]] = {
            f"{name}.weight_packed": (outputs, -(-inputs * self.bits // 32)),
            f"{name}.weight_scale": self.tensor_scale if self.tensor_scale is not None else (outputs, groups),
            f"{name}.weight_shape": (2,),
        }
        if not self.symmetric:
            found[f"{name}.weight_zero_point"] = (-(-outputs * self.bits // 32), groups)
        if self.has_order:
            found[f"{name}.weight_g_idx"] = (inputs,)
        return found

    def input_order(self, name: str, inputs: int, weights: Weights) -> torch.Tensor | None:
        if not self.has_order:
            return None
        groups = take(weights, f"{name}.weight_g_idx", (torch.int32, torch.int64))
        return order_of_groups(groups, f"{name}.weight_g_idx", self.group_size or inputs)

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        kept, name = self.format(inputs), piece.name
        shape = take(weights, f"{name}.weight_shape", (torch.int64, torch.int32)).tolist()
        if shape != [piece.count, inputs]:
            raise CheckpointError(f"{name}.weight_shape is {shape}, expected {[piece.count, inputs]}")
        order = self.input_order(name, inputs, weights)
        for rows in some_rows(piece.rows, inputs):
            words = take(weights, f"{name}.weight_packed", (torch.int32,), slice(rows.start, rows.stop))
            scales = _scales(f"{name}.weight_scale", rows, self.scale_dtype, weights, self.tensor_scale)
            zeros = None if self.symmetric else self._zeros(f"{name}.weight_zero_point", rows, weights)
            codes = columns_of(fields_of(words, self.bits)[:, :inputs], order)
            yield QuantizedWeight(kept, codes, scales, zeros=zeros)

    def _zeros(self, name: str, rows: range, weights: Weights) -> torch.Tensor:
        """[``rows``, G] uint8."""
        together = 32 // self.bits
        first, last = rows.start // together, -(-rows.stop // together)
        words = take(weights, name, (torch.int32,), slice(first, last))
        zeros = fields_of(words.t(), self.bits)[:, rows.start - first * together : rows.stop - first * together]
        return zeros.t().contiguous()


@dataclass(frozen=True, slots=True)
class IntScheme(Scheme):
    """``weight`` [N, K] int8, and, unless symmetric, ``weight_zero_point`` [N, G] int8."""

    group_size: int | None
    """None: all inputs."""
    symmetric: bool
    scale_dtype: torch.dtype
    tensor_scale: tuple[int, ...] | None = None
    """As in ``PackedScheme``."""

    def format(self, inputs: int) -> QuantFormat:
        return integer_format(8, self.group_size or inputs, self.symmetric, self.scale_dtype)

    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        groups = -(-inputs // (self.group_size or inputs))
        scales = self.tensor_scale if self.tensor_scale is not None else (outputs, groups)
        zeros = {} if self.symmetric else {f"{name}.weight_zero_point": scales}
        return {f"{name}.weight": (outputs, inputs), f"{name}.weight_scale": scales} | zeros

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        for rows in some_rows(piece.rows, inputs):
            place = slice(rows.start, rows.stop)
            codes = take(weights, f"{piece.name}.weight", (torch.int8,), place).view(torch.uint8) ^ 128
            scales = _scales(f"{piece.name}.weight_scale", rows, self.scale_dtype, weights, self.tensor_scale)
            zeros = None if self.symmetric else self._zeros(f"{piece.name}.weight_zero_point", rows, weights)
            yield QuantizedWeight(self.format(inputs), codes, scales, zeros=zeros)

    def _zeros(self, name: str, rows: range, weights: Weights) -> torch.Tensor:
        """[``rows``, G] uint8."""
        place = () if self.tensor_scale is not None else (slice(rows.start, rows.stop),)
        zeros = take(weights, name, (torch.int8,), *place).view(torch.uint8) ^ 128
        return zeros if place else zeros.reshape(1, 1).repeat(len(rows), 1)


@dataclass(frozen=True, slots=True)
class Fp4Scheme(Scheme):
    """``weight_packed`` [N, K / 2]: two numbers in a byte, the first in its low half.

    Groups of 32 (MXFP4) have powers of two as scales, stored as exponents + 127. Groups of 16 (NVFP4) have scales in
    FP8, divided by ``weight_global_scale``.
    """

    group_size: int

    @property
    def description(self) -> str:
        return "NVFP4" if self._is_nvfp4 else "MXFP4"

    @property
    def _is_nvfp4(self) -> bool:
        return self.group_size == FP4_FORMATS["nvfp4-pack-quantized"]

    def format(self, inputs: int) -> QuantFormat:
        return QuantFormat(FP4, self.group_size, torch.float32 if self._is_nvfp4 else torch.bfloat16)

    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {
            f"{name}.weight_packed": (outputs, -(-inputs // 2)),
            f"{name}.weight_scale": (outputs, -(-inputs // self.group_size)),
        }
        return found | ({f"{name}.weight_global_scale": (1,)} if self._is_nvfp4 else {})

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        for rows in some_rows(piece.rows, inputs):
            packed = take(weights, f"{piece.name}.weight_packed", (torch.uint8,), slice(rows.start, rows.stop))
            scales = self._scales(piece.name, rows, weights)
            yield QuantizedWeight(self.format(inputs), nibbles_of(packed)[:, :inputs], scales)

    def _scales(self, name: str, rows: range, weights: Weights) -> torch.Tensor:
        """[``rows``, G]."""
        of_groups, place = f"{name}.weight_scale", slice(rows.start, rows.stop)
        if not self._is_nvfp4:
            return take_powers(weights, of_groups, place)
        factor = take_scales(weights, f"{name}.weight_global_scale", torch.float32)
        if not (factor > 0).all():
            raise CheckpointError(f"{name}.weight_global_scale is {factor.item()}: expected a positive number")
        scales = take(weights, of_groups, (torch.float8_e4m3fn,), place).float() / factor
        if not scales.isfinite().all():
            raise CheckpointError(f"{of_groups} has infinities or NaNs: download the checkpoint again")
        return scales


def _scales(
    name: str, rows: range, dtype: torch.dtype, weights: Weights, tensor_scale: tuple[int, ...] | None
) -> torch.Tensor:
    """[``rows``, G]."""
    if tensor_scale is None:
        return take_scales(weights, name, dtype, slice(rows.start, rows.stop))
    return take_scales(weights, name, dtype).reshape(1, 1).repeat(len(rows), 1)
