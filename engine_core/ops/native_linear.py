"""Linear layers by the native kernels in engine_core/kernels/cpu."""

from __future__ import annotations

import ctypes

import torch

from engine_core.kernels.arguments import NUMBER_TYPES
from engine_core.kernels.capture import Kernel, kernel_output
from engine_core.kernels.library import Kernels
from engine_core.ops.base import Greatest, LinearOp
from engine_core.ops.native_packing import PackedWeights


class PackedLinear(LinearOp):
    """A weight in its kernels' layout. Subclasses pack it."""

    masks_argmax = True

    def __init__(self, linear: Kernel, argmax: Kernel, arguments: ctypes.Structure) -> None:
        """``arguments``: a ``RinglineLinear`` without the fields that each call sets."""
        self.in_features, self.out_features = arguments.in_features, arguments.out_features
        self._linear = linear
        self._argmax = argmax
        self._arguments = arguments

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
        into: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = x.contiguous()
        y = kernel_output(x.shape[0], self.out_features, dtype or x.dtype) if into is None else into
        arguments = self._arguments
        if residual is None:
            arguments.residual = None
        else:
            arguments.residual, arguments.residual_stride = residual.data_ptr(), residual.stride(0)
        arguments.output_stride = y.stride(0)
        arguments.wide, arguments.scale = y.dtype == torch.float32, scale
        self._call(self._linear, x, y)
        return y

    def _call(self, kernel: Kernel, x: torch.Tensor, output: torch.Tensor) -> None:
        arguments = self._arguments
        arguments.x, arguments.output, arguments.rows = x.data_ptr(), output.data_ptr(), x.shape[0]
        arguments.num_threads = torch.get_num_threads()
        if kernel(arguments) != 0:
            raise MemoryError("no memory for the inputs of a linear layer")

    def greatest(self, x: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """Writes no other outputs."""
        places, values = torch.empty(x.shape[0], dtype=torch.int64), torch.empty(x.shape[0])
        self._arguments.greatest = values.data_ptr()
        self._arguments.allowed = None if allowed is None else allowed.data_ptr()
        self._call(self._argmax, x.contiguous(), places)
        return Greatest(places, values)


class NativeLinear(PackedLinear):
    """A weight packed as in cpu/linear/linear.h."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Pack ``weight`` [N, K]; K is a multiple of 16."""
        outputs, inputs = weight.shape
        self._kernels = kernels
        self._weights = PackedWeights(1, outputs, inputs, weight.dtype, bias=bias is not None)
        self._weights.pack(0, weight)
        if bias is not None and self._weights.bias is not None:
            self._weights.bias[0, :outputs] = bias
        arguments = kernels.linear.arguments(
            weight=self._weights.packed.data_ptr(),
            bias=None if self._weights.bias is None else self._weights.bias.data_ptr(),
            in_features=inputs,
            out_features=outputs,
            number_type=NUMBER_TYPES[weight.dtype],
        )
        super().__init__(kernels.linear, kernels.argmax, arguments)

    @property
    def nbytes(self) -> int:
        return self._weights.nbytes

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        found = torch.empty(len(indices), self.in_features, dtype=self._weights.packed.dtype)
        self._kernels.read_rows.run(
            weight=self._weights.packed,
            indices=indices,
            output=found,
            rows=len(indices),
            in_features=self.in_features,
            number_type=NUMBER_TYPES[found.dtype],
        )
        return found
