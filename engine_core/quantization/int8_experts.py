"""Experts with 8-bit weights, whose inputs are rounded to 8 bits before either product."""

from __future__ import annotations

import ctypes

import torch

from engine_core.kernels.capture import kernel_output
from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsShape
from engine_core.ops.native_experts import PackedExperts
from engine_core.ops.native_packing import padded_width
from engine_core.quantization.int8_packing import PANEL, Int8Weights, packed_bytes


def experts_bytes(shape: ExpertsShape) -> int:
    """Bytes of the weights as they are kept."""
    hidden, inner = padded_width(shape.hidden_size), padded_width(shape.intermediate_size)
    biases = 4 * (2 * inner + -(-hidden // PANEL) * PANEL) if shape.bias else 0
    return shape.num_experts * (packed_bytes(2 * inner, hidden) + packed_bytes(hidden, inner) + biases)


class Int8Experts(PackedExperts):
    """A row with an infinity or a NaN in it becomes NaN, alone."""

    def __init__(self, kernels: Kernels, shape: ExpertsShape, dtype: torch.dtype) -> None:
        """``dtype`` is that of the weights before they are rounded."""
        hidden, inner = padded_width(shape.hidden_size), padded_width(shape.intermediate_size)
        gate_up = Int8Weights(shape.num_experts, 2 * inner, hidden, bias=shape.bias, kernels=kernels)
        down = Int8Weights(shape.num_experts, hidden, inner, bias=shape.bias, kernels=kernels)
        super().__init__(kernels.int8_experts, shape, dtype, gate_up, down, PANEL)
        self._arguments.gate_up, self._arguments.down = (ctypes.addressof(each.structure) for each in (gate_up, down))

    def _rooms(self, rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        top_k, hidden, inner = self._arguments.top_k, self._arguments.hidden, self._arguments.inner
        return {
            "gathered": kernel_output(rows, top_k * hidden, dtype),
            "activated": kernel_output(rows, top_k * inner, dtype),
            "rounded": kernel_output(rows, top_k * max(hidden, inner), torch.int8),
            "row_scales": kernel_output(rows, top_k, torch.float32),
        }
