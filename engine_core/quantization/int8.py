"""A linear layer with 8-bit weights that rounds its inputs to 8 bits (W8A8): half the memory, twice the products.

Weights are rounded when the layer is made, symmetrically, with one scale per output channel; inputs in each call, with
one scale per row. (Dettmers et al., 2022, https://arxiv.org/abs/2208.07339, call that vector-wise quantization.)
Integer products are summed without rounding, and everything else is computed element by element in a fixed order. So a
row's result has the same bits whatever the other rows, the threads and the processor; a single row is no special case.
"""

from __future__ import annotations

import math

import torch

from engine_core.kernels.arguments import NUMBER_TYPES, Int8Call, Int8Packing, Int8Weight
from engine_core.kernels.capture import empty
from engine_core.kernels.library import Int8Kernels
from engine_core.kernels.memory import empty_for_streaming
from engine_core.layers.base import LayerBackend, LinearLayer
from engine_core.layers.weights import Weights
from engine_core.quantization.base import LinearShape, QuantMethod, take_bias, take_weight

PANEL = 32
"""Columns that the kernel computes together."""
_WORD = 4
MOST_INPUTS = 2**17
"""This many products of 127 · 127 can be summed in 32 bits."""


class Int8(QuantMethod):
    """Linear layers, the head among them, with 8-bit weights."""

    def __init__(self, kernels: Int8Kernels | None) -> None:
        """``kernels`` is None where weights are only counted, not loaded."""
        self._kernels = kernels

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        rows, columns = shape.outputs.count, shape.inputs.count
        scales_and_sums = 8
        weight = _up_to(rows, PANEL) * (_up_to(columns, _WORD) + scales_and_sums)
        return weight + (rows * itemsize if shape.bias else 0)

    def load(self, shape: LinearShape, weights: Weights, backend: LayerBackend) -> LinearLayer:
        assert self._kernels is not None
        bias = take_bias(shape, weights, backend)
        return Int8Linear(take_weight(shape, weights, backend), bias, self._kernels)


def _up_to(count: int, multiple: int) -> int:
    return math.ceil(count / multiple) * multiple


class Int8Linear(LinearLayer):
    """W and x are rounded to 8 bits. A row of x with an infinity or a NaN in it becomes NaN, alone."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Int8Kernels) -> None:
        """Round and pack ``weight`` [N, K] on CPU, to compute with ``kernels``. It is not kept.

        A channel with an infinity or a NaN in it becomes NaN.
        """
        self.out_features, self.in_features = weight.shape
        if self.in_features > MOST_INPUTS:
            raise ValueError(f"a layer of {self.in_features} inputs cannot be summed in 32 bits")
        self.dtype = weight.dtype
        self._kernels = kernels
        panels, words = -(-self.out_features // PANEL), -(-self.in_features // _WORD)
        self._weight = empty_for_streaming((panels, words, PANEL, _WORD), torch.int8).zero_()
        self._scales = torch.zeros(panels * PANEL)
        self._column_sums = torch.zeros(panels * PANEL, dtype=torch.int32)
        self._pack(weight.contiguous())
        self._bias = None
        if bias is not None:
            self._bias = torch.zeros_like(self._scales)
            self._bias[: self.out_features] = bias
        self._arguments = Int8Weight(
            self._weight.data_ptr(),
            self._scales.data_ptr(),
            self._column_sums.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.in_features,
            self.out_features,
        )

    def _pack(self, weight: torch.Tensor) -> None:
        self._kernels.pack(
            Int8Packing(
                weight.data_ptr(),
                self._weight.data_ptr(),
                self._scales.data_ptr(),
                self._column_sums.data_ptr(),
                self.in_features,
                self.out_features,
                NUMBER_TYPES[weight.dtype],
                torch.get_num_threads(),
            )
        )

    @property
    def nbytes(self) -> int:
        parts = (self._weight, self._scales, self._column_sums, self._bias)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        if x.stride(1) != 1:
            x = x.contiguous()
        y = empty(x.shape[0], self.out_features, dtype or x.dtype)
        call = Int8Call(
            x.data_ptr(),
            x.stride(0),
            None if residual is None else residual.data_ptr(),
            y.data_ptr(),
            x.shape[0],
            NUMBER_TYPES[x.dtype],
            NUMBER_TYPES[y.dtype],
            torch.get_num_threads(),
            scale,
        )
        if self._kernels.linear(self._arguments, call) != 0:
            raise MemoryError("no memory for the rounded inputs of a linear layer")
        return y

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        """As ``LinearLayer`` says, of the rounded weight."""
        found = self._weight[indices // PANEL, :, indices % PANEL].flatten(1)[:, : self.in_features]
        return (found.float() * self._scales[indices, None]).to(self.dtype)
