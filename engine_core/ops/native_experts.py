"""Routers, experts and grouped linear layers by the native kernels in engine_core/kernels/cpu."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from engine_core.kernels.arguments import NUMBER_TYPES, ExpertsArguments, GroupedLinearArguments, RoutingArguments
from engine_core.kernels.capture import empty
from engine_core.kernels.library import CpuKernels
from engine_core.kernels.memory import empty_for_streaming
from engine_core.ops.base import ExpertsOp, ExpertsShape, ExpertWeights, Routing
from engine_core.ops.native_packing import PANEL, TILE, interleave, pack_rows, packed_shape

_TILE_INNER = TILE // 2
"""Outputs of the gate in a tile, and as many of up."""


class NativeGroupedLinear:
    """Packed as cpu/interface.h says."""

    def __init__(self, kernels: CpuKernels, weight: torch.Tensor) -> None:
        """Pack ``weight`` [G, N, K]; N and K are multiples of 16."""
        self._kernels = kernels
        groups, outputs, inputs = weight.shape
        self._sizes = (groups, inputs, outputs)
        self._packed = empty_for_streaming((groups, *packed_shape(outputs, inputs, weight.dtype)), weight.dtype)
        for source, target in zip(weight, self._packed, strict=True):
            pack_rows(source, target)

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        groups, inputs, outputs = self._sizes
        assert x.stride(2) == 1
        y = empty(x.shape[0], groups * outputs, x.dtype)
        arguments = GroupedLinearArguments(
            x.data_ptr(),
            self._packed.data_ptr(),
            y.data_ptr(),
            x.shape[0],
            groups,
            inputs,
            outputs,
            x.stride(0),
            x.stride(1),
            NUMBER_TYPES[x.dtype],
            torch.get_num_threads(),
        )
        if self._kernels.grouped_linear(arguments) != 0:
            raise MemoryError("no memory for the inputs of grouped linear layers")
        return y.view(x.shape[0], groups, outputs)


def route(
    kernels: CpuKernels,
    logits: torch.Tensor,
    routing: Routing,
    correction_bias: torch.Tensor | None,
    expert_scales: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``OpsBackend.route`` with native kernels."""
    rows, num_experts = logits.shape
    ids, weights = empty(rows, routing.top_k, torch.int32), empty(rows, routing.top_k, torch.float32)
    arguments = RoutingArguments(
        logits.data_ptr(),
        None if correction_bias is None else correction_bias.data_ptr(),
        None if expert_scales is None else expert_scales.data_ptr(),
        ids.data_ptr(),
        weights.data_ptr(),
        rows,
        num_experts,
        routing.top_k,
        routing.num_groups,
        routing.topk_groups,
        routing.group_best,
        routing.scoring,
        routing.renormalize,
        torch.get_num_threads(),
        routing.scale,
    )
    if kernels.route(arguments) != 0:
        raise MemoryError("no memory for the scores of experts")
    return ids, weights


class NativeExperts(ExpertsOp):
    """Packed as cpu/interface.h says: a tile of gate and up has 32 outputs of each."""

    def __init__(self, kernels: CpuKernels, shape: ExpertsShape, dtype: torch.dtype) -> None:
        self._kernels = kernels
        self._shape = shape
        self._hidden, self._inner = (-(-size // PANEL) * PANEL for size in (shape.hidden_size, shape.intermediate_size))
        self._tiles = -(-self._inner // _TILE_INNER)
        gate_up = (shape.num_experts, *packed_shape(self._tiles * TILE, self._hidden, dtype))
        down = (shape.num_experts, *packed_shape(self._hidden, self._inner, dtype))
        self._gate_up, self._down = empty_for_streaming(gate_up, dtype), empty_for_streaming(down, dtype)
        self._gate_up_bias = self._down_bias = torch.empty(0)
        if shape.bias:
            self._gate_up_bias = torch.zeros(shape.num_experts, self._tiles, 2, _TILE_INNER)
            self._down_bias = torch.zeros(shape.num_experts, -(-self._hidden // TILE) * TILE)
        is_native = dtype == torch.bfloat16 and kernels.instruction_set == "avx512_bf16"
        self._factor_type = dtype if is_native else torch.float32

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self._gate_up, self._down, self._gate_up_bias, self._down_bias))

    def load(self, experts: Iterable[ExpertWeights]) -> None:
        dtype = self._down.dtype
        gate_up = torch.zeros(self._tiles, 2, _TILE_INNER, self._hidden, dtype=dtype)
        down = torch.zeros(self._hidden, self._inner, dtype=dtype)
        for expert, weights in enumerate(experts):
            for place in range(2):
                interleave(next(weights.tensors), gate_up[:, place])
            pack_rows(gate_up.view(-1, self._hidden), self._gate_up[expert])
            down[: self._shape.hidden_size, : self._shape.intermediate_size] = next(weights.tensors)
            pack_rows(down, self._down[expert])
            if weights.biases is not None:
                self._load_biases(expert, *weights.biases)

    def _load_biases(self, expert: int, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> None:
        for place, bias in enumerate((gate, up)):
            interleave(bias[:, None], self._gate_up_bias[expert, :, place, :, None])
        self._down_bias[expert, : len(down)] = down

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        shape, rows = self._shape, x.shape[0]
        output = empty(rows, self._hidden, x.dtype)
        gathered = empty(rows, shape.top_k * self._hidden, self._factor_type)
        activated = empty(rows, shape.top_k * self._inner, self._factor_type)
        arguments = ExpertsArguments(
            x.data_ptr(),
            ids.data_ptr(),
            weights.data_ptr(),
            self._gate_up.data_ptr(),
            self._down.data_ptr(),
            self._gate_up_bias.data_ptr() if shape.bias else None,
            self._down_bias.data_ptr() if shape.bias else None,
            None if residual is None else residual.data_ptr(),
            output.data_ptr(),
            gathered.data_ptr(),
            activated.data_ptr(),
            None,
            None,
            rows,
            self._hidden,
            self._inner,
            shape.num_experts,
            shape.top_k,
            shape.activation,
            NUMBER_TYPES[x.dtype],
            torch.get_num_threads(),
            shape.swiglu_limit,
            shape.swiglu_alpha,
        )
        if self._kernels.experts(arguments) != 0:
            raise MemoryError("no memory for the rows of experts")
        return output
