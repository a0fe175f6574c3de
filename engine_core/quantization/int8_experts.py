"""Experts with 8-bit weights, whose inputs are rounded to 8 bits before either product."""

from __future__ import annotations

import ctypes

import torch

from engine_core.kernels.capture import kernel_output
from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsSplit
from engine_core.ops.native_experts import PackingExperts
from engine_core.ops.native_packing import padded_width
from engine_core.quantization.int8_packing import PANEL, Int8Weights, packed_bytes
from engine_core.weights.experts import ExpertsShape, ExpertsShard


def experts_bytes(shape: ExpertsShape, shard: ExpertsShard) -> int:
    """Bytes of the packed weights of a rank's ``shard``."""
    hidden, inner = padded_width(shape.hidden_size), padded_width(shape.intermediate_size)
    hidden_part, inner_part = padded_width(len(shard.hidden)), padded_width(len(shard.inner))
    gate_up = shape.num_expanding * inner_part
    biases = 4 * (gate_up + -(-hidden_part // PANEL) * PANEL) if shape.bias else 0
    return len(shard.experts) * (packed_bytes(gate_up, hidden) + packed_bytes(hidden_part, inner) + biases)


class Int8Experts(PackingExperts):
    """A row with an infinity or a NaN becomes NaN; other rows do not."""

    def __init__(
        self, kernels: Kernels, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None = None
    ) -> None:
        """``dtype`` is that of the weights before they are rounded."""
        super().__init__(kernels.int8_experts, shape, dtype, split, PANEL)
        sizes, count = self._arguments, self._arguments.num_experts
        gate_up = Int8Weights(count, self._tiles * PANEL, sizes.hidden, bias=shape.bias, kernels=kernels)
        down = Int8Weights(count, sizes.hidden_part, sizes.inner, bias=shape.bias, kernels=kernels)
        self._gate_up, self._down = gate_up, down
        self._arguments.gate_up, self._arguments.down = (ctypes.addressof(each.structure) for each in (gate_up, down))

    def _rooms(self, rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        sizes, top_k = self._arguments, self._arguments.top_k
        return {
            "activated": kernel_output(rows, top_k * sizes.inner_part, dtype),
            "outputs": kernel_output(rows, top_k * sizes.hidden_part, dtype),
            "rounded": kernel_output(rows, top_k * max(sizes.hidden, sizes.inner), torch.int8),
            "row_scales": kernel_output(rows, top_k, torch.float32),
        }
