"""Experts with 8-bit weights, whose inputs are rounded to 8 bits before either product."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch

from engine_core.kernels.arguments import NUMBER_TYPES, ExpertsArguments
from engine_core.kernels.capture import empty
from engine_core.kernels.library import Int8Kernels
from engine_core.ops.base import ExpertsOp, ExpertsShape, ExpertWeights
from engine_core.ops.native_packing import interleave
from engine_core.quantization.int8_packing import PANEL, Int8Weights, packed_bytes

_MULTIPLE = 16
"""The kernel needs hidden and inner sizes that are multiples of this."""
_PANEL_INNER = PANEL // 2
"""Outputs of the gate in a panel, and as many of up."""


def padded_sizes(shape: ExpertsShape) -> tuple[int, int]:
    """The hidden and the inner size, as the kernel takes them."""
    hidden, inner = (-(-size // _MULTIPLE) * _MULTIPLE for size in (shape.hidden_size, shape.intermediate_size))
    return hidden, inner


def experts_bytes(shape: ExpertsShape) -> int:
    """Bytes of the weights as they are kept."""
    hidden, inner = padded_sizes(shape)
    biases = 4 * (2 * inner + -(-hidden // PANEL) * PANEL) if shape.bias else 0
    return shape.num_experts * (packed_bytes(2 * inner, hidden) + packed_bytes(hidden, inner) + biases)


class Int8Experts(ExpertsOp):
    """Packed as cpu/interface.h says. A row with an infinity or a NaN in it becomes NaN, alone."""

    def __init__(self, kernels: Int8Kernels, shape: ExpertsShape, dtype: torch.dtype) -> None:
        """``dtype`` is that of the weights before they are rounded."""
        self._kernels = kernels
        self._shape = shape
        self._dtype = dtype
        self._hidden, self._inner = padded_sizes(shape)
        count, bias = shape.num_experts, shape.bias
        self._gate_up = Int8Weights(count, 2 * self._inner, self._hidden, bias=bias, kernels=kernels)
        self._down = Int8Weights(count, self._hidden, self._inner, bias=bias, kernels=kernels)

    @property
    def nbytes(self) -> int:
        return self._gate_up.nbytes + self._down.nbytes

    def load(self, experts: Iterable[ExpertWeights]) -> None:
        gate_up = torch.zeros(self._inner // _PANEL_INNER, 2, _PANEL_INNER, self._hidden, dtype=self._dtype)
        down = torch.zeros(self._hidden, self._inner, dtype=self._dtype)
        for expert, weights in enumerate(experts):
            for place in range(2):
                interleave(next(weights.tensors), gate_up[:, place])
            self._gate_up.pack(expert, gate_up.view(-1, self._hidden))
            down[: self._shape.hidden_size, : self._shape.intermediate_size] = next(weights.tensors)
            self._down.pack(expert, down)
            if weights.biases is not None:
                self._load_biases(expert, *weights.biases)

    def _load_biases(self, expert: int, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> None:
        assert self._gate_up.bias is not None
        assert self._down.bias is not None
        panels = self._gate_up.bias[expert].view(-1, 2, _PANEL_INNER)
        for place, bias in enumerate((gate, up)):
            interleave(bias[:, None], panels[:, place, :, None])
        self._down.bias[expert, : len(down)] = down

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        shape, rows = self._shape, x.shape[0]
        output = empty(rows, self._hidden, x.dtype)
        outputs = empty(rows, shape.top_k * self._hidden, x.dtype)
        activated = empty(rows, shape.top_k * self._inner, x.dtype)
        rounded = empty(rows, shape.top_k * max(self._hidden, self._inner), torch.int8)
        row_scales = empty(rows, shape.top_k, torch.float32)
        arguments = ExpertsArguments(
            x.data_ptr(),
            ids.data_ptr(),
            weights.data_ptr(),
            ctypes.addressof(self._gate_up.arguments),
            ctypes.addressof(self._down.arguments),
            None,
            None,
            None if residual is None else residual.data_ptr(),
            output.data_ptr(),
            outputs.data_ptr(),
            activated.data_ptr(),
            rounded.data_ptr(),
            row_scales.data_ptr(),
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
