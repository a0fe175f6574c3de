"""A weight that stays quantized: codes along its rows, their codebook, and the scales and offsets of groups.

Every supported format reduces to this one: a weight is ``scale · (codebook[code] − zero)``, or ``scale · codebook[code]
+ minimum``, where a group of neighbouring inputs of one output shares the scale, zero and minimum.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import torch


class Offset(enum.Enum):
    """A group's offset, besides its scale."""

    NONE = enum.auto()
    ZERO = enum.auto()
    """The code of zero: an integer from 0 to 255."""
    MINIMUM = enum.auto()
    """An added number."""


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """The storage format of weights."""

    codebook: tuple[float, ...]
    """The value of each code: 16, 32, 64 or 256 numbers."""
    group_size: int
    """Inputs per group; the last group may have fewer."""
    scale_dtype: torch.dtype
    """Type of scales and minima: float16, bfloat16 or float32."""
    outer_size: int | None = None
    """Inputs that share an outer scale of ``scale_dtype``; a group's scale is that times an 8-bit integer, and likewise
    its minimum. None: each group has its own ``scale_dtype`` scale.
    """
    offset: Offset = Offset.NONE

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return (len(self.codebook) - 1).bit_length()

    @property
    def is_linear(self) -> bool:
        """Whether a code's value is the code plus a constant integer."""
        first = self.codebook[0]
        return first.is_integer() and self.codebook == tuple(first + code for code in range(len(self.codebook)))

    def nbytes(self, outputs: int, inputs: int) -> int:
        """Bytes of a weight, without padding."""
        groups, itemsize = -(-inputs // self.group_size), self.scale_dtype.itemsize
        of_scales = groups * itemsize if self.outer_size is None else groups + -(-inputs // self.outer_size) * itemsize
        of_offsets = {Offset.NONE: 0, Offset.ZERO: groups, Offset.MINIMUM: of_scales}[self.offset]
        return outputs * (-(-inputs * self.bits // 8) + of_scales + of_offsets)


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Rows [N, K] of a weight, with G groups and O outer scales per row; on CPU, dense."""

    format: QuantFormat
    codes: torch.Tensor
    """[N, K] uint8, one code per element."""
    scales: torch.Tensor
    """[N, G] of ``scale_dtype``; int8 if there are outer scales."""
    outer_scales: torch.Tensor | None = None
    """[N, O] of ``scale_dtype``."""
    zeros: torch.Tensor | None = None
    """[N, G] uint8."""
    minima: torch.Tensor | None = None
    """[N, G], like ``scales``."""
    outer_minima: torch.Tensor | None = None

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> QuantizedWeight:
        """A weight with other rows: ``change`` is applied to every tensor; their first dimension is N."""
        tensors = (self.codes, self.scales, self.outer_scales, self.zeros, self.minima, self.outer_minima)
        codes, scales, *others = (None if tensor is None else change(tensor) for tensor in tensors)
        assert codes is not None
        assert scales is not None
        return QuantizedWeight(self.format, codes, scales, *others)

    def dequantized(self, codebook: torch.Tensor | None = None) -> torch.Tensor:
        """[N, K] float32, on the device of the codes.

        ``codebook``: the format's, already on the device: captured code must not copy from the host.
        """
        if codebook is None:
            codebook = torch.tensor(self.format.codebook, device=self.codes.device)
        numbers = codebook[self.codes.int()]
        if self.zeros is not None:
            numbers -= self._of_inputs(self.zeros.float())
        numbers *= self._of_inputs(self.group_scales())
        if (minima := self.group_minima()) is not None:
            numbers += self._of_inputs(minima)
        return numbers

    def group_scales(self) -> torch.Tensor:
        """[N, G] float32."""
        return self._of_groups(self.scales, self.outer_scales)

    def group_minima(self) -> torch.Tensor | None:
        """[N, G] float32."""
        return None if self.minima is None else self._of_groups(self.minima, self.outer_minima)

    def _of_groups(self, inner: torch.Tensor, outer: torch.Tensor | None) -> torch.Tensor:
        """[N, G] float32."""
        if outer is None:
            return inner.float()
        assert self.format.outer_size is not None
        each = self.format.outer_size // self.format.group_size
        return inner.float() * outer.float().repeat_interleave(each, 1)[:, : inner.shape[1]]

    def _of_inputs(self, groups: torch.Tensor) -> torch.Tensor:
        """Expand [N, G] to [N, K]."""
        return groups.repeat_interleave(self.format.group_size, 1)[:, : self.codes.shape[1]]


SIGNED4 = tuple(float(code - 8) for code in range(16))
UNSIGNED4 = tuple(float(code) for code in range(16))
SIGNED5 = tuple(float(code - 16) for code in range(32))
UNSIGNED5 = tuple(float(code) for code in range(32))
SIGNED6 = tuple(float(code - 32) for code in range(64))
SIGNED8 = tuple(float(code - 128) for code in range(256))
UNSIGNED8 = tuple(float(code) for code in range(256))
_FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4 = (*_FP4_MAGNITUDES, *(-size for size in _FP4_MAGNITUDES))
"""E2M1 (OCP Microscaling Formats, version 1.0)."""
_E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
FP8 = tuple(_E4M3.nan_to_num(0.0).tolist())
"""E4M3, with zeros for its two NaN codes."""
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of the normal distribution (https://arxiv.org/abs/2305.14314, appendix E)."""
