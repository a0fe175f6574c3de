"""AWQ (Lin et al., 2023, https://arxiv.org/abs/2306.00978) as AutoAWQ stores it in its "gemm" form: codes of 4 bits, a
scale and a zero for each group of inputs.

A word of ``qweight`` [K, N / 8] holds one input's codes of eight neighbouring outputs, which take turns in it:
0, 2, 4, 6, 1, 3, 5, 7 from the lowest four bits on. ``qzeros`` [K / group, N / 8] is packed alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from engine_core.layers.weights import TensorRows, Weights
from engine_core.ops.quantized_weight import UNSIGNED4, Offset, QuantFormat, QuantizedWeight
from engine_core.quantization.base import QuantizationConfig, QuantMethod
from engine_core.quantization.config_fields import ConfigFields, groups_in_words, is_linear
from engine_core.quantization.packing import bytes_apart, some_rows, take, take_scales
from engine_core.quantization.stored import StoredMethod

_TOGETHER = 8
"""Outputs of a word."""
_OUTPUTS_OF_BYTES = ((0, 2), (4, 6), (1, 3), (5, 7))
"""Which of those the low and the high half of each byte are for."""


class AwqConfig(QuantizationConfig):
    """Linear layers of decoder layers, but for exceptions by name."""

    def __init__(self, fields: Mapping[str, Any], scale_dtype: torch.dtype) -> None:
        known = ConfigFields("AWQ", fields)
        if "w_bit" in fields:  # AutoAWQ's own names
            known = ConfigFields("AWQ", {"bits": fields["w_bit"], "group_size": fields.get("q_group_size"), **fields})
        known.one_of("bits", (4,))
        known.one_of("zero_point", (True,), True)
        known.one_of("version", ("gemm", "GEMM"), "gemm")
        self._group_size = known.group_size()
        self._exceptions = known.strings("modules_to_not_convert")
        self._method = AwqMethod(self)
        self._scale_dtype = scale_dtype

    def method(self, names: tuple[str, ...]) -> QuantMethod:
        return self._method

    def is_quantized(self, name: str) -> bool:
        """Whether the layer is; like AutoAWQ, by parts of names."""
        return is_linear(name) and not any(each in name for each in self._exceptions)

    def format(self, inputs: int) -> QuantFormat:
        return QuantFormat(UNSIGNED4, self._group_size or inputs, self._scale_dtype, offset=Offset.ZERO)

    def describe(self) -> str:
        return f"AWQ, 4 bits in {groups_in_words(self._group_size)}"


class AwqMethod(StoredMethod):
    """Reads what an ``AwqConfig`` describes."""

    def __init__(self, config: AwqConfig) -> None:
        self.config = config

    def format(self, name: str, inputs: int) -> QuantFormat | None:
        return self.config.format(inputs) if self.config.is_quantized(name) else None

    def tensors_of(self, piece: TensorRows, inputs: int) -> dict[str, tuple[int, ...]]:
        if (kept := self.format(piece.name, inputs)) is None:
            return super().tensors_of(piece, inputs)
        groups, words = -(-inputs // kept.group_size), -(-piece.count // _TOGETHER)
        return {
            f"{piece.name}.qweight": (inputs, words),
            f"{piece.name}.qzeros": (groups, words),
            f"{piece.name}.scales": (groups, piece.count),
        }

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        kept = self.config.format(inputs)
        for rows in some_rows(piece.rows, inputs):
            scales = take_scales(
                weights, f"{piece.name}.scales", kept.scale_dtype, slice(None), slice(rows.start, rows.stop)
            )
            yield QuantizedWeight(
                kept,
                _codes(weights, f"{piece.name}.qweight", rows),
                scales.t().contiguous(),
                zeros=_codes(weights, f"{piece.name}.qzeros", rows),
            )


def _codes(weights: Weights, name: str, rows: range) -> torch.Tensor:
    """[``rows``, inputs or groups] uint8."""
    first, last = rows.start // _TOGETHER, -(-rows.stop // _TOGETHER)
    packed = bytes_apart(take(weights, name, (torch.int32,), slice(None), slice(first, last)))
    codes = torch.empty(len(packed), _TOGETHER, packed.shape[2], dtype=torch.uint8)
    for byte, (low, high) in enumerate(_OUTPUTS_OF_BYTES):
        torch.bitwise_and(packed[:, byte], 15, out=codes[:, low])
        torch.bitwise_right_shift(packed[:, byte], 4, out=codes[:, high])
    return codes.flatten(0, 1)[rows.start - first * _TOGETHER : rows.stop - first * _TOGETHER]
