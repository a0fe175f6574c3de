"""Layers computed by the native kernels in engine_core/kernels/cpu.

All of them give a row the same bits whatever the other rows and the threads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_core.kernels.arguments import (
    NUMBER_TYPES,
    GateArguments,
    LinearArguments,
    NormArguments,
    RotationArguments,
    RowsArguments,
    SelectionArguments,
)
from engine_core.kernels.capture import empty
from engine_core.kernels.library import CpuKernels, Int8Kernels
from engine_core.kernels.memory import empty_for_streaming
from engine_core.layers.base import DecoderStack, EmbeddingLayer, HeadRotation, LayerFactory, LinearLayer, NormLayer
from engine_core.layers.embedding import PackedEmbedding
from engine_core.layers.graph import KernelGraph
from engine_core.quantization.int8 import Int8Linear

_UNIT = 16
"""What the kernels take at a time: widths are multiples of it."""
_TILE = 64
"""Outputs to whose multiple a weight is padded."""
_MOST_HEAD_DIM = 1024
"""``kMostHeadDim`` of cpu/rotation.h."""


class NativeLinear:
    """y = x · Wᵀ + b, packed as cpu/linear.h describes."""

    def __init__(self, kernels: CpuKernels, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Pack ``weight`` [N, K]; K is a multiple of 16."""
        self.out_features, self.in_features = weight.shape
        self._kernels = kernels
        self._packed = _pack(weight)
        self._bias = None
        if bias is not None:
            self._bias = torch.zeros(self._packed.shape[0] * _UNIT)
            self._bias[: self.out_features] = bias
        self._arguments = LinearArguments(
            weight=self._packed.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            in_features=self.in_features,
            out_features=self.out_features,
            number_type=NUMBER_TYPES[weight.dtype],
        )

    @property
    def nbytes(self) -> int:
        """Memory of the weight and the bias."""
        return self._packed.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """[M, N] of ``x`` [M, K], plus ``residual`` [M, N]; in the type of ``x``, or in float32 if ``dtype`` is."""
        x = x.contiguous()
        y = empty(x.shape[0], self.out_features, dtype or x.dtype)
        self._arguments.residual = None if residual is None else residual.data_ptr()
        self._arguments.wide = y.dtype == torch.float32
        self._call(self._kernels.linear, x, y)
        return y

    def _call(self, kernel: Callable[[LinearArguments], int], x: torch.Tensor, output: torch.Tensor) -> None:
        arguments = self._arguments
        arguments.x, arguments.output, arguments.rows = x.data_ptr(), output.data_ptr(), x.shape[0]
        arguments.num_threads = torch.get_num_threads()
        if kernel(arguments) != 0:
            raise MemoryError("no memory for the inputs of a linear layer")

    def argmax(self, x: torch.Tensor) -> torch.Tensor:
        """[M] int64: where each row of y for ``x`` [M, K] is greatest, in float32; the first of equals, or of NaNs."""
        places = torch.empty(x.shape[0], dtype=torch.int64)
        self._call(self._kernels.argmax, x.contiguous(), places)
        return places

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows [T, K] of the weight, for ``indices`` [T] int64, dense and less than N."""
        found = torch.empty(len(indices), self.in_features, dtype=self._packed.dtype)
        self._kernels.read_rows(
            RowsArguments(
                self._packed.data_ptr(),
                indices.data_ptr(),
                found.data_ptr(),
                len(indices),
                self.in_features,
                NUMBER_TYPES[found.dtype],
                torch.get_num_threads(),
            )
        )
        return found


class NativeNorm:
    """Root mean square normalization, computed in float32."""

    def __init__(self, kernels: CpuKernels, weight: torch.Tensor, eps: float) -> None:
        """Keep a copy of ``weight`` [H]; H is a multiple of 16."""
        self._kernels = kernels
        self._weight = weight.to(torch.float32, copy=True)
        self._arguments = NormArguments(
            weight=self._weight.data_ptr(),
            width=len(weight),
            number_type=NUMBER_TYPES[weight.dtype],
            epsilon=eps,
        )

    @property
    def nbytes(self) -> int:
        """Memory of the weight."""
        return self._weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``x`` [T, H]."""
        x = x.contiguous()
        y = empty(x.shape[0], x.shape[1], x.dtype)
        arguments = self._arguments
        arguments.x, arguments.output, arguments.rows = x.data_ptr(), y.data_ptr(), x.shape[0]
        arguments.num_threads = torch.get_num_threads()
        self._kernels.normalize(arguments)
        return y


class NativeRotation:
    """Normalization and rotation of queries and keys in place."""

    def __init__(
        self,
        kernels: CpuKernels,
        num_heads: int,
        num_kv_heads: int,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> None:
        """Keep copies of the norms' weights [D]; D is a multiple of 16, at most 1024."""
        self._kernels = kernels
        self._weights = None if norms is None else torch.stack([norm.float() for norm in norms])
        self._split = [num_heads, num_kv_heads, num_kv_heads]
        self._arguments = RotationArguments(num_heads=num_heads, num_kv_heads=num_kv_heads, epsilon=eps)
        if self._weights is not None:
            self._arguments.query_weight = self._weights[0].data_ptr()
            self._arguments.key_weight = self._weights[1].data_ptr()

    @property
    def nbytes(self) -> int:
        """Memory of the norms' weights."""
        return 0 if self._weights is None else self._weights.nbytes

    def __call__(
        self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of ``heads`` [T, Hq + 2 · Hkv, D], which is overwritten."""
        arguments = self._arguments
        arguments.heads, arguments.cos, arguments.sin = heads.data_ptr(), cos.data_ptr(), sin.data_ptr()
        arguments.rows, arguments.stride, arguments.head_dim = heads.shape[0], heads.stride(0), heads.shape[2]
        arguments.number_type, arguments.num_threads = NUMBER_TYPES[heads.dtype], torch.get_num_threads()
        self._kernels.rotate(arguments)
        query, key, value = torch.split(heads, self._split, dim=1)
        return query, key, value


class NativeLayerFactory(LayerFactory):
    """Everything by native kernels; linear layers with 8-bit weights where there are kernels for those."""

    compiles_per_size = False

    def __init__(self, kernels: CpuKernels, int8_kernels: Int8Kernels | None = None) -> None:
        """Compute with ``kernels``, and linear layers with ``int8_kernels`` if given."""
        self._kernels = kernels
        self._int8_kernels = int8_kernels
        self._gate = GateArguments()

    @staticmethod
    def supports(widths: tuple[int, ...], head_dim: int, dtype: torch.dtype) -> bool:
        """Whether the kernels can compute rows of those widths, and heads of that size, of that type."""
        whole_units = all(width % _UNIT == 0 for width in (*widths, head_dim))
        return whole_units and head_dim <= _MOST_HEAD_DIM and dtype in NUMBER_TYPES

    def numerics(self) -> str:
        return f"native {self._kernels.instruction_set}, build {self._kernels.build}"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearLayer:
        if self._int8_kernels is not None:
            return Int8Linear(weight, bias, self._int8_kernels)
        return NativeLinear(self._kernels, weight, bias)

    def tied_embedding(self, head: LinearLayer, table: torch.Tensor) -> EmbeddingLayer:
        assert isinstance(head, NativeLinear | Int8Linear)
        return PackedEmbedding(head)

    def norm(self, weight: torch.Tensor, eps: float) -> NormLayer:
        return NativeNorm(self._kernels, weight, eps)

    def rotation(
        self, num_heads: int, num_kv_heads: int, norms: tuple[torch.Tensor, torch.Tensor] | None, eps: float
    ) -> HeadRotation:
        return NativeRotation(self._kernels, num_heads, num_kv_heads, norms, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        output = empty(rows, width, gate_up.dtype)
        arguments = self._gate
        arguments.gate_up, arguments.output = gate_up.data_ptr(), output.data_ptr()
        arguments.rows, arguments.width, arguments.number_type = rows, width, NUMBER_TYPES[gate_up.dtype]
        arguments.num_threads = torch.get_num_threads()
        self._kernels.silu_and_multiply(arguments)
        return output

    def select_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        selected = empty(len(rows), x.shape[1], x.dtype)
        self._kernels.select_rows(
            SelectionArguments(
                x.data_ptr(),
                selected.data_ptr(),
                rows.data_ptr(),
                len(rows),
                x.shape[1] * x.itemsize,
                torch.get_num_threads(),
            )
        )
        return selected

    def argmax(self, head: LinearLayer, hidden: torch.Tensor) -> torch.Tensor:
        return head.argmax(hidden) if isinstance(head, NativeLinear) else super().argmax(head, hidden)

    def captured(self, stack: DecoderStack) -> DecoderStack:
        return KernelGraph(stack, self._kernels.replay)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` [N, K] as [N / 16, K / P, 16, P], N padded with zeros to whole tiles."""
    num_rows, width = weight.shape
    together = 2 if weight.dtype == torch.bfloat16 else 1
    panels = -(-num_rows // _TILE) * (_TILE // _UNIT)
    packed = empty_for_streaming((panels, width // together, _UNIT, together), weight.dtype)
    # What is packed together moves as one number.
    words = torch.int32 if together == 2 else weight.dtype
    source, target = weight.contiguous().view(words), packed.view(words).squeeze(-1)
    whole = num_rows // _UNIT
    target[:whole] = source[: whole * _UNIT].view(whole, _UNIT, width // together).transpose(1, 2)
    target[whole:] = 0
    if num_rows % _UNIT:
        target[whole, :, : num_rows % _UNIT] = source[whole * _UNIT :].T
    return packed
