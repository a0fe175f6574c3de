"""Ops computed by the native kernels in engine_core/kernels/cpu.

A row's bits depend neither on the other rows nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from engine_core.activation import Activation
from engine_core.attention.base import Angles, RotaryOp
from engine_core.kernels.arguments import NUMBER_TYPES
from engine_core.kernels.capture import kernel_output
from engine_core.kernels.library import Kernels
from engine_core.ops.base import (
    DecoderStack,
    ExpertsOp,
    ExpertsSplit,
    GroupedLinearOp,
    HeadNorms,
    HeadsShape,
    LinearOp,
    NormOp,
    OpsBackend,
    Routing,
    UnloadedExperts,
)
from engine_core.ops.int8_activations import Int8Activations, Int8ActivationsExperts, Int8ActivationsLinear
from engine_core.ops.kernel_graph import KernelGraph
from engine_core.ops.native_experts import NativeExperts, NativeGroupedLinear, route
from engine_core.ops.native_linear import NativeLinear
from engine_core.ops.native_lora import NativeLoRAOps
from engine_core.ops.native_packing import PANEL, padded_width
from engine_core.ops.native_quantized import NativeQuantizedLinear, PackedQuantizedWeights, keeps
from engine_core.ops.native_quantized_experts import NativeQuantizedExperts, keeps_experts
from engine_core.ops.native_states import NativeStateOps
from engine_core.ops.native_streams import NativeStreamOps
from engine_core.weights.experts import ExpertsShape, QuantizedExpertWeights
from engine_core.weights.quantized_weight import QuantFormat, QuantizedWeight


class NativeNorm:
    """Normalization, computed in float32."""

    def __init__(
        self, kernels: Kernels, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, width: int, scale: float
    ) -> None:
        """Copy ``weight`` and ``bias`` [W]; W is a multiple of 16, the mean is over ``width`` elements."""
        self._kernel = kernels.normalize
        self._weight = weight.clone()
        self._bias = None if bias is None else bias.clone()
        self._arguments = self._kernel.arguments(
            weight=self._weight.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            width=len(weight),
            mean_width=width,
            epsilon=eps,
            scale=scale,
        )

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        in_place: bool = False,
        over: torch.Tensor | None = None,
    ) -> torch.Tensor:
        width = x.shape[-1]
        groups = x.shape[1] if x.ndim == 3 else 1
        x = x if x.stride(-1) == 1 and x.stride(-2) in (width, x.stride(0)) else x.contiguous()
        y = x if in_place else kernel_output(x.shape[0], groups * width, x.dtype).view(x.shape)
        arguments = self._arguments
        arguments.x, arguments.output, arguments.rows = x.data_ptr(), y.data_ptr(), x.shape[0]
        arguments.groups = groups
        arguments.x_stride, arguments.output_stride = x.stride(0), y.stride(0)
        arguments.residual = None if residual is None else residual.data_ptr()
        arguments.over = None if over is None else over.data_ptr()
        if over is not None:
            arguments.over_width, arguments.over_stride = over.shape[1], over.stride(0)
        arguments.number_type, arguments.num_threads = NUMBER_TYPES[x.dtype], torch.get_num_threads()
        self._kernel(arguments)
        return y


class NativeRotary:
    """Normalization and rotation of heads in place."""

    def __init__(self, kernels: Kernels, shape: HeadsShape, norms: HeadNorms | None) -> None:
        """Copy the norms' weights; D is at most 1024, and heads are padded to a multiple of 16."""
        self._kernel = kernels.rotate
        self._weights: torch.Tensor | None = None
        self._split = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        self._arguments = self._kernel.arguments(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            mean_width=shape.head_dim,
            rotary_dim=shape.rotary_dim,
            interleaved=shape.interleaved,
        )
        if norms is not None:
            self._weights = norms.stacked(-shape.head_dim % PANEL)
            self._arguments.epsilon = norms.eps
            places = ("query_weight", "key_weight", "value_weight")
            for place, weight in zip(places, self._weights, strict=False):
                setattr(self._arguments, place, weight.data_ptr())

    @property
    def nbytes(self) -> int:
        return 0 if self._weights is None else self._weights.nbytes

    def __call__(self, heads: torch.Tensor, angles: Angles | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        arguments = self._arguments
        arguments.heads = heads.data_ptr()
        if angles is not None:
            arguments.cos, arguments.sin = angles.cos.data_ptr(), angles.sin.data_ptr()
            scales = angles.query_scales
            arguments.query_scales = None if scales is None else scales.data_ptr()
        arguments.rows, arguments.stride, arguments.head_dim = heads.shape[0], heads.stride(0), heads.shape[2]
        arguments.head_stride = heads.stride(1)
        arguments.number_type, arguments.num_threads = NUMBER_TYPES[heads.dtype], torch.get_num_threads()
        self._kernel(arguments)
        query, key, value = torch.split(heads, self._split, dim=1)
        return query, key, value


class NativeBackend(OpsBackend):
    """Computes everything by native kernels."""

    batch_invariant = True
    rank_invariant = True

    def __init__(self, kernels: Kernels, rounding: Int8Activations | None = None) -> None:
        """``rounding``: for --int8-activations; None: inputs are not rounded."""
        self._kernels = kernels
        self._rounding = rounding

    def describe_layers(self) -> str:
        return "" if self._rounding is None else self._rounding.describe()

    def padded(self, width: int) -> int:
        return padded_width(width)

    def numerics(self) -> str:
        return f"native {self._kernels.instruction_set}, build {self._kernels.build}"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearOp:
        return NativeLinear(self._kernels, weight, bias)

    def quantized_linear(
        self,
        kept: QuantFormat,
        outputs: int,
        inputs: int,
        dtype: torch.dtype,
        parts: Iterable[QuantizedWeight],
        bias: torch.Tensor | None = None,
        input_order: torch.Tensor | None = None,
    ) -> LinearOp:
        if not keeps(kept, inputs):
            return super().quantized_linear(kept, outputs, inputs, dtype, parts, bias, input_order)
        weights = PackedQuantizedWeights(self._kernels, kept, outputs, inputs, input_order=input_order)
        weights.pack(0, parts)
        if self._rounding is not None and self._rounding.takes(kept):
            return Int8ActivationsLinear(self._kernels, self._rounding.kernels, weights, dtype, bias)
        return NativeQuantizedLinear(self._kernels, weights, dtype, bias)

    def grouped_linear(self, weight: torch.Tensor) -> GroupedLinearOp:
        return NativeGroupedLinear(self._kernels, weight)

    def route(
        self,
        logits: torch.Tensor,
        routing: Routing,
        correction_bias: torch.Tensor | None,
        expert_scales: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return route(self._kernels, logits, routing, correction_bias, expert_scales)

    def experts(self, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None = None) -> UnloadedExperts:
        return NativeExperts(self._kernels, shape, dtype, split)

    def quantized_experts(
        self,
        shape: ExpertsShape,
        gate_up: QuantFormat,
        down: QuantFormat,
        dtype: torch.dtype,
        experts: Iterable[QuantizedExpertWeights],
        split: ExpertsSplit | None = None,
    ) -> ExpertsOp:
        if not keeps_experts(shape, gate_up, down):
            return super().quantized_experts(shape, gate_up, down, dtype, experts, split)
        if self._rounding is not None and self._rounding.takes(gate_up, down):
            op: NativeQuantizedExperts = Int8ActivationsExperts(
                self._kernels, self._rounding.kernels, shape, gate_up, down, dtype, split
            )
        else:
            op = NativeQuantizedExperts(self._kernels, shape, gate_up, down, dtype, split)
        op.load(experts)
        return op

    def norm(
        self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, width: int, scale: float = 1.0
    ) -> NormOp:
        return NativeNorm(self._kernels, weight, bias, eps, width, scale)

    def rotary(self, shape: HeadsShape, norms: HeadNorms | None) -> RotaryOp:
        return NativeRotary(self._kernels, shape, norms)

    def stream_ops(self) -> NativeStreamOps:
        return NativeStreamOps(self._kernels)

    def state_ops(self) -> NativeStateOps:
        return NativeStateOps(self._kernels)

    def lora_ops(self) -> NativeLoRAOps:
        return NativeLoRAOps(self._kernels)

    def activate(self, x: torch.Tensor, activation: Activation, up: torch.Tensor | None = None) -> torch.Tensor:
        output = kernel_output(x.shape[0], x.shape[1], x.dtype)
        self._kernels.activate.run(
            x=x,
            up=up,
            output=output,
            rows=x.shape[0],
            width=x.shape[1],
            x_stride=x.stride(0),
            up_stride=0 if up is None else up.stride(0),
            output_stride=output.stride(0),
            kind=activation,
            number_type=NUMBER_TYPES[x.dtype],
        )
        return output

    def add_gated(self, x: torch.Tensor, logits: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        output = kernel_output(x.shape[0], x.shape[1], x.dtype)
        self._kernels.sigmoid_gate.run(
            x=x,
            logits=logits,
            residual=residual,
            output=output,
            rows=x.shape[0],
            groups=logits.shape[1],
            width=x.shape[1] // logits.shape[1],
            number_type=NUMBER_TYPES[x.dtype],
        )
        return output

    def select_rows(self, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        if rows is None:
            return x
        selected = kernel_output(len(rows), x.shape[1], x.dtype)
        self._kernels.select_rows.run(
            x=x,
            output=selected,
            indices=rows,
            rows=len(rows),
            row_bytes=x.shape[1] * x.itemsize,
            x_stride=x.stride(0) * x.itemsize,
        )
        return selected

    def captured(self, stack: DecoderStack) -> DecoderStack:
        return KernelGraph(stack, self._kernels.replay)
