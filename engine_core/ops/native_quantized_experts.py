"""Experts with weights that stay quantized, by the kernel in cpu/experts/quantized_experts.h."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import addressof

import torch

from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsSplit
from engine_core.ops.native_experts import PackedExperts, factor_type, load_biases, rooms_for_factors
from engine_core.ops.native_packing import PANEL, TILE
from engine_core.ops.native_quantized import PackedQuantizedWeights, keeps
from engine_core.weights.experts import ExpertsShape, QuantizedExpertWeights
from engine_core.weights.quantized_weight import QuantFormat


def keeps_experts(shape: ExpertsShape, gate_up: QuantFormat, down: QuantFormat) -> bool:
    """Whether the kernel can compute these experts: nothing is padded, so that groups are not cut."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    return hidden % PANEL == 0 and inner % PANEL == 0 and keeps(gate_up, hidden) and keeps(down, inner)


class NativeQuantizedExperts(PackedExperts):
    """Gates and ups in one format, downs possibly in another."""

    _gate_up: PackedQuantizedWeights
    _down: PackedQuantizedWeights

    def __init__(
        self,
        kernels: Kernels,
        shape: ExpertsShape,
        gate_up: QuantFormat,
        down: QuantFormat,
        dtype: torch.dtype,
        split: ExpertsSplit | None = None,
    ) -> None:
        """Memory for the weights, for inputs of ``dtype``."""
        super().__init__(kernels.quantized_experts, shape, split, TILE)
        sizes, count = self._arguments, self._arguments.num_experts
        outputs = self._tiles * TILE
        gate_ups = PackedQuantizedWeights(kernels, gate_up, outputs, sizes.hidden, count=count)
        downs = PackedQuantizedWeights(kernels, down, sizes.hidden_part, sizes.inner, count=count)
        self._gate_up, self._down = gate_ups, downs
        sizes.gate_up, sizes.down = addressof(gate_ups.weight), addressof(downs.weight)
        self._biases: tuple[torch.Tensor, torch.Tensor] | None = None
        if shape.bias:
            of_gate_up, of_down = (
                torch.zeros(count, outputs),
                torch.zeros(count, -(-sizes.hidden_part // TILE) * TILE),
            )
            self._biases = of_gate_up, of_down
            sizes.gate_up_bias, sizes.down_bias = of_gate_up.data_ptr(), of_down.data_ptr()
        self._factor_type = factor_type(kernels, dtype)

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(bias.nbytes for bias in self._biases or ())

    def load(self, experts: Iterable[QuantizedExpertWeights]) -> None:
        """Pack the weights of all experts of this rank's shard, in ascending order."""
        for index, expert in enumerate(experts):
            for half in (0, 1) if self._shape.gated else (None,):
                self._gate_up.pack(index, next(expert.tensors), half)
            self._down.pack(index, next(expert.tensors))
            if expert.input_orders is not None:
                self._gate_up.order_inputs(index, expert.input_orders[0])
                self._down.order_inputs(index, expert.input_orders[1])
            if self._biases is not None and expert.biases is not None:
                of_gate_up, of_down = self._biases
                load_biases(expert.biases, of_gate_up[index], of_down[index], self._tile_inner)

    def _rooms(self, rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return rooms_for_factors(self._arguments, self._split, self._factor_type, rows, dtype)
