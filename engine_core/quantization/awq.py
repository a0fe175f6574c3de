"""AWQ (Lin et al., 2023, https://arxiv.org/abs/2306.00978) in AutoAWQ's "gemm" form: codes of 4 bits, a scale and a
zero for each group of inputs.

A word of ``qweight`` [K, N / 8] holds one input's codes of eight neighbouring outputs, in the order
0, 2, 4, 6, 1, 3, 5, 7 from the lowest four bits on. ``qzeros`` [K / group, N / 8] is packed alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine_core.quantization.config_fields import ConfigFields, groups_in_words, is_linear
from engine_core.quantization.packing import bytes_apart, some_rows, take, take_scales
from engine_core.quantization.schemes import Scheme, SchemesConfig, Tensors, is_listed, scale_dtype
from engine_core.weights.quantized_weight import UNSIGNED4, Offset, QuantFormat, QuantizedWeight
from engine_core.weights.source import TensorRows, Weights

_TOGETHER = 8
"""Outputs of a word."""
_OUTPUTS_OF_BYTES = ((0, 2), (4, 6), (1, 3), (5, 7))
"""The outputs in the low and high half of each byte."""


@dataclass(frozen=True, slots=True)
class AwqScheme(Scheme):
    """Codes of 4 bits, packed along outputs."""

    group_size: int | None
    """None: all inputs."""
    scale_dtype: torch.dtype

    def format(self, inputs: int) -> QuantFormat:
        return QuantFormat(UNSIGNED4, self.group_size or inputs, self.scale_dtype, offset=Offset.ZERO)

    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        groups, words = -(-inputs // (self.group_size or inputs)), -(-outputs // _TOGETHER)
        return {
            f"{name}.qweight": (inputs, words),
            f"{name}.qzeros": (groups, words),
            f"{name}.scales": (groups, outputs),
        }

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        kept = self.format(inputs)
        for rows in some_rows(piece.rows, inputs):
            columns = slice(rows.start, rows.stop)
            yield QuantizedWeight(
                kept,
                _codes(weights, f"{piece.name}.qweight", rows),
                take_scales(weights, f"{piece.name}.scales", kept.scale_dtype, slice(None), columns).t().contiguous(),
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


class AwqConfig(SchemesConfig):
    """Quantizes linear layers of decoder layers, except those listed."""

    def __init__(self, fields: Mapping[str, Any], tensors: Tensors) -> None:
        super().__init__()
        known = ConfigFields("AWQ", fields)
        if "w_bit" in fields:  # AutoAWQ's own names
            known = ConfigFields("AWQ", {"bits": fields["w_bit"], "group_size": fields.get("q_group_size"), **fields})
        known.one_of("bits", (4,))
        known.one_of("zero_point", (True,), True)
        known.one_of("version", ("gemm", "GEMM"), "gemm")
        self._exceptions = known.strings("modules_to_not_convert")
        self._scheme = AwqScheme(known.group_size(), scale_dtype(tensors, ".scales"))
        self._tensors = tensors

    def scheme(self, name: str) -> AwqScheme | None:
        if f"{name}.qweight" in self._tensors or f"{name}.weight" in self._tensors:
            return self._scheme if f"{name}.qweight" in self._tensors else None
        return self._scheme if is_linear(name) and not is_listed(name, self._exceptions) else None

    def describe(self) -> str:
        return f"AWQ, 4 bits in {groups_in_words(self._scheme.group_size)}"
