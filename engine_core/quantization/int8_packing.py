"""Weights rounded to 8 bits, in the native kernels' layout (kernels/cpu/quantized/int8_pack.h)."""

from __future__ import annotations

import torch

from engine_core.errors import UnsupportedModelError
from engine_core.kernels.arguments import NUMBER_TYPES, structures
from engine_core.kernels.library import Kernels
from engine_core.kernels.memory import empty_for_streaming

PANEL = 32
"""Outputs that the kernels compute together."""
WORD = 4
"""Inputs that the kernels take together."""
MOST_INPUTS = 2**17
"""This many products of 127 · 127 can be summed in 32 bits."""


def packed_bytes(outputs: int, inputs: int) -> int:
    """Bytes of one weight [N, K], with its padding, scales and column sums."""
    scale_and_sum = 8
    return -(-outputs // PANEL) * PANEL * (-(-inputs // WORD) * WORD + scale_and_sum)


def require_summable(name: str, inputs: int) -> None:
    """Raise ``UnsupportedModelError`` for a layer with too many inputs."""
    if inputs > MOST_INPUTS:
        raise UnsupportedModelError(
            f"{name} has {inputs} inputs, and 8 bits allow at most {MOST_INPUTS}: leave out --quantization int8"
        )


class Int8Weights:
    """Weights [N, K] of one size, one after the other: rounded symmetrically, with one scale per output channel.

    A channel with an infinity or a NaN becomes NaN.
    """

    def __init__(self, count: int, outputs: int, inputs: int, *, bias: bool, kernels: Kernels) -> None:
        """Memory for ``count`` weights, all zeros."""
        assert inputs <= MOST_INPUTS
        self._kernel = kernels.int8_pack
        panels, words = -(-outputs // PANEL), -(-inputs // WORD)
        self.weight = empty_for_streaming((count, panels, words, PANEL, WORD), torch.int8).zero_()
        self.scales = torch.zeros(count, panels * PANEL)
        self._column_sums = torch.zeros(count, panels * PANEL, dtype=torch.int32)
        self.bias = torch.zeros(count, panels * PANEL) if bias else None
        self.structure = structures()["RinglineInt8Weight"](
            weight=self.weight.data_ptr(),
            scales=self.scales.data_ptr(),
            column_sums=self._column_sums.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            in_features=inputs,
            out_features=outputs,
        )
        """Kernels that multiply take its address."""

    @property
    def nbytes(self) -> int:
        parts = (self.weight, self.scales, self._column_sums, self.bias)
        return sum(part.nbytes for part in parts if part is not None)

    def pack(self, index: int, weight: torch.Tensor) -> None:
        """Round ``weight`` [N, K] on CPU. It is not kept."""
        weight = weight.contiguous()
        self._kernel.run(
            input=weight,
            weight=self.weight[index],
            scales=self.scales[index],
            column_sums=self._column_sums[index],
            in_features=self.structure.in_features,
            out_features=self.structure.out_features,
            input_type=NUMBER_TYPES[weight.dtype],
        )
