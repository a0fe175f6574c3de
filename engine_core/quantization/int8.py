"""A linear layer with 8-bit weights that rounds its inputs to 8 bits (W8A8): half the memory, twice the products.

Weights are rounded when the layer is made, symmetrically, with one scale per output channel; inputs in each call, with
one scale per row (vector-wise quantization: Dettmers et al., 2022, https://arxiv.org/abs/2208.07339). Integer products
are summed without rounding, and everything else is computed element by element in a fixed order. So a row's result has
the same bits whatever the other rows, the threads and the processor; a single row is no special case.
"""

from __future__ import annotations

import ctypes

import torch

from engine_core.errors import UnsupportedModelError
from engine_core.kernels.arguments import NUMBER_TYPES
from engine_core.kernels.capture import kernel_output
from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsSplit, LinearOp, OpsBackend, UnloadedExperts
from engine_core.ops.native_packing import padded_width
from engine_core.quantization.base import QuantMethod, take_bias, take_weight
from engine_core.quantization.int8_experts import Int8Experts, experts_bytes
from engine_core.quantization.int8_packing import PANEL, Int8Weights, packed_bytes, require_summable
from engine_core.weights.expert_tensors import ExpertTensors
from engine_core.weights.experts import ExpertsShape, ExpertsShard
from engine_core.weights.features import LinearShape
from engine_core.weights.source import Weights


class Int8(QuantMethod):
    """Linear layers, the head and experts among them, with 8-bit weights."""

    def __init__(self, kernels: Kernels | None) -> None:
        """``kernels`` is None if weights are only counted, not loaded."""
        self._kernels = kernels

    def tensors(self, shape: LinearShape) -> dict[str, tuple[int, ...]]:
        require_summable(", ".join(shape.names), shape.inputs.count)
        return super().tensors(shape)

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        weight = packed_bytes(shape.outputs.count, shape.inputs.count)
        return weight + (shape.outputs.count * itemsize if shape.bias else 0)

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        assert self._kernels is not None
        require_summable(", ".join(shape.names), shape.inputs.groups * shape.inputs.padded(backend))
        bias = take_bias(shape, weights, backend)
        return Int8Linear(take_weight(shape, weights, backend), bias, self._kernels)

    def experts(
        self, shape: ExpertsShape, dtype: torch.dtype, backend: OpsBackend, split: ExpertsSplit | None = None
    ) -> UnloadedExperts:
        assert self._kernels is not None
        for place, inputs in (("gate", shape.hidden_size), ("down", shape.intermediate_size)):
            require_summable(f"the {place} projection of experts", padded_width(inputs))
        if backend.padded(shape.hidden_size) != padded_width(shape.hidden_size):
            raise UnsupportedModelError(
                f"--quantization int8 of experts with hidden_size={shape.hidden_size} needs native kernels, which are "
                "not used here: leave the option out"
            )
        return Int8Experts(self._kernels, shape, dtype, split)

    def expert_bytes(
        self, shape: ExpertsShape, tensors: ExpertTensors, itemsize: int, shard: ExpertsShard | None = None
    ) -> int:
        return experts_bytes(shape, shard or shape.whole)


class Int8Linear(LinearOp):
    """W and x are rounded to 8 bits. A row of x with an infinity or a NaN becomes NaN; other rows do not."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kernels: Kernels) -> None:
        """Round and pack ``weight`` [N, K] on CPU, to compute with ``kernels``. It is not kept.

        A channel with an infinity or a NaN becomes NaN.
        """
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self._kernel = kernels.int8_linear
        self._weights = Int8Weights(1, self.out_features, self.in_features, bias=bias is not None, kernels=kernels)
        self._weights.pack(0, weight)
        if bias is not None and self._weights.bias is not None:
            self._weights.bias[0, : self.out_features] = bias
        self._arguments = self._kernel.arguments(weight=ctypes.addressof(self._weights.structure))

    @property
    def nbytes(self) -> int:
        return self._weights.nbytes

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if x.stride(1) != 1:
            x = x.contiguous()
        y = kernel_output(x.shape[0], self.out_features, dtype or x.dtype) if into is None else into
        arguments = self._arguments
        arguments.input, arguments.input_stride = x.data_ptr(), x.stride(0)
        if residual is None:
            arguments.residual = None
        else:
            arguments.residual, arguments.residual_stride = residual.data_ptr(), residual.stride(0)
        arguments.output, arguments.output_stride = y.data_ptr(), y.stride(0)
        arguments.rows, arguments.scale = x.shape[0], scale
        arguments.input_type, arguments.output_type = NUMBER_TYPES[x.dtype], NUMBER_TYPES[y.dtype]
        arguments.num_threads = torch.get_num_threads()
        if self._kernel(arguments) != 0:
            raise MemoryError("no memory for the rounded inputs of a linear layer")
        return y

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the rounded weight."""
        found = self._weights.weight[0, indices // PANEL, :, indices % PANEL].flatten(1)[:, : self.in_features]
        return (found.float() * self._weights.scales[0, indices, None]).to(self.dtype)
