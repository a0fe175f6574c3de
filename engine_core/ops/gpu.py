"""Ops on NVIDIA GPUs: matrix products by ``gpu_linear``, everything else by our own Triton kernels."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton

from engine_core.activation import Activation
from engine_core.attention.base import Angles, RotaryOp
from engine_core.kernels.triton import AS_WRITTEN
from engine_core.kernels.triton.activation import activate
from engine_core.kernels.triton.norm import normalize
from engine_core.kernels.triton.rope import rotate
from engine_core.ops.base import (
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
from engine_core.ops.gpu_experts import GpuExperts, InvariantGroupedLinear, LibraryGroupedLinear
from engine_core.ops.gpu_linear import InvariantLinear, LibraryLinear
from engine_core.ops.gpu_lora import TritonLoRAOps
from engine_core.ops.gpu_quantized import GpuQuantizedLinear
from engine_core.ops.gpu_states import GpuStateOps
from engine_core.ops.states import StateOps
from engine_core.ops.torch import TorchBackend, TorchNorm
from engine_core.weights.experts import ExpertsShape
from engine_core.weights.quantized_weight import QuantFormat, QuantizedWeight

_HEADS_TOGETHER = 8
_ACTIVATIONS_TOGETHER = 1024
_WIDTH_PER_WARP = 512


class GpuNorm(TorchNorm):
    """Computed by a kernel."""

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        in_place: bool = False,
        over: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if over is not None:
            return super().__call__(x, residual=residual, in_place=in_place, over=over)
        output = x if in_place else torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rows, made = x.flatten(0, -2), output.flatten(0, -2)
        width = triton.next_power_of_2(rows.shape[1])
        normalize[(len(rows),)](
            rows,
            self.weight,
            self.weight if self.bias is None else self.bias,
            x if residual is None else residual,
            made,
            rows.stride(0),
            made.stride(0),
            EPSILON=self.eps,
            SCALE=self.scale,
            SIZE=rows.shape[1],
            WIDTH=width,
            CENTERED=self.bias is not None,
            ADDED=residual is not None,
            num_warps=min(16, max(1, width // _WIDTH_PER_WARP)),
            **AS_WRITTEN,
        )
        return output


class GpuRotary:
    """Normalization and rotation of heads, in place or into the KV cache."""

    def __init__(self, shape: HeadsShape, norms: HeadNorms | None) -> None:
        """Copy the norms' weights."""
        self._shape = shape
        self._split = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        self._weights = None if norms is None else norms.stacked()
        self._eps = 0.0 if norms is None else norms.eps
        self._norms_values = norms is not None and norms.value is not None

    @property
    def nbytes(self) -> int:
        return 0 if self._weights is None else self._weights.nbytes

    def __call__(self, heads: torch.Tensor, angles: Angles | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``heads`` [T, Hq + 2 · Hkv, D] is overwritten; queries, keys and values are views of it."""
        if angles is not None or self._weights is not None:
            self._launch(heads, angles, None, None)
        query, key, value = torch.split(heads, self._split, dim=1)
        return query, key, value

    def into_cache(
        self, heads: torch.Tensor, angles: Angles | None, kv_cache: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        self._launch(heads, angles, kv_cache, slots)
        return heads[:, : self._split[0]]

    def _launch(
        self, heads: torch.Tensor, angles: Angles | None, kv_cache: torch.Tensor | None, slots: torch.Tensor | None
    ) -> None:
        num_heads, num_kv_heads, num_values = self._split
        count = num_heads + num_kv_heads + (num_values if kv_cache is not None or self._norms_values else 0)
        half = 0 if angles is None else angles.cos.shape[-1]
        rest, scales = heads.shape[2] - 2 * half, None if angles is None else angles.query_scales
        rotate[(len(heads), -(-count // _HEADS_TOGETHER))](
            heads,
            heads if self._weights is None else self._weights,
            heads if angles is None else angles.cos,
            heads if angles is None else angles.sin,
            heads if scales is None else scales,
            heads if kv_cache is None else kv_cache,
            heads if slots is None else slots,
            heads.stride(0),
            heads.stride(1),
            0 if kv_cache is None else kv_cache.stride(0),
            0 if kv_cache is None else kv_cache.stride(1),
            NORMALIZED=self._weights is not None,
            VALUES_NORMALIZED=self._norms_values,
            SCALED=scales is not None,
            INTERLEAVED=self._shape.interleaved,
            EPSILON=self._eps,
            NUM_QUERY_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=heads.shape[2],
            HALF=half,
            TOGETHER=_HEADS_TOGETHER,
            WIDTH=triton.next_power_of_2(half),
            REST_WIDTH=triton.next_power_of_2(rest),
            CACHED=kv_cache is not None,
            BLOCK_SIZE=1 if kv_cache is None else kv_cache.shape[3],
            num_warps=2,
            **AS_WRITTEN,
        )


class GpuBackend(OpsBackend):
    """Computes everything on one GPU. Linear layers overwrite their ``residual``."""

    expands_experts = True
    adapts_experts = False
    adapts_streams = False

    def __init__(self, processors: int, deterministic: bool, device: torch.device | None = None) -> None:
        """``processors``: multiprocessors of the ``device``. ``deterministic``: linear layers are batch-invariant."""
        self._processors = processors
        self._device = device or torch.device("cuda")
        self.batch_invariant = deterministic

    def numerics(self) -> str:
        return f"triton {triton.__version__}, " + ("own products" if self.batch_invariant else "products by cuBLAS")

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearOp:
        return InvariantLinear(weight, bias, self._processors) if self.batch_invariant else LibraryLinear(weight, bias)

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
        if inputs % 2:
            return super().quantized_linear(kept, outputs, inputs, dtype, parts, bias, input_order)
        return GpuQuantizedLinear(
            kept, outputs, inputs, dtype, parts, bias, input_order, self._device, self._processors
        )

    def grouped_linear(self, weight: torch.Tensor) -> GroupedLinearOp:
        if self.batch_invariant:
            return InvariantGroupedLinear(weight, self._processors)
        return LibraryGroupedLinear(weight)

    def route(
        self,
        logits: torch.Tensor,
        routing: Routing,
        correction_bias: torch.Tensor | None,
        expert_scales: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return TorchBackend().route(logits, routing, correction_bias, expert_scales)  # reads nothing back to the host

    def experts(self, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None = None) -> UnloadedExperts:
        return GpuExperts(shape, dtype, self._device, split)

    def kept(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def norm(
        self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, width: int, scale: float = 1.0
    ) -> NormOp:
        return GpuNorm(weight, bias, eps, scale)

    def rotary(self, shape: HeadsShape, norms: HeadNorms | None) -> RotaryOp:
        return GpuRotary(shape, norms)

    def state_ops(self) -> StateOps:
        return GpuStateOps()

    def lora_ops(self) -> TritonLoRAOps:
        return TritonLoRAOps(self._processors, self._device)

    def activate(self, x: torch.Tensor, activation: Activation, up: torch.Tensor | None = None) -> torch.Tensor:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        activate[(len(x), -(-x.shape[1] // _ACTIVATIONS_TOGETHER))](
            x,
            x if up is None else up,
            output,
            x.stride(0),
            0 if up is None else up.stride(0),
            SIZE=x.shape[1],
            BLOCK=_ACTIVATIONS_TOGETHER,
            KIND=int(activation),
            GATED=up is not None,
            **AS_WRITTEN,
        )
        return output

    def add_gated(self, x: torch.Tensor, logits: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        grouped, gates = (*logits.shape, x.shape[1] // logits.shape[1]), logits.sigmoid().to(x.dtype)[..., None]
        if residual is None:
            return (x.view(grouped) * gates).flatten(1)
        return torch.addcmul(residual.view(grouped), x.view(grouped), gates).flatten(1)
