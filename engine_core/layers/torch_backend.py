"""Layers by plain torch: the reference in tests, and the fallback where no native kernels could be built.

A row's bits may depend on the other rows here: torch chooses its kernels by the number of rows.
"""

from __future__ import annotations

import torch

from engine_core.attention.base import Angles
from engine_core.layers.activation import Activation
from engine_core.layers.base import HeadNorms, HeadsShape, LayerBackend, LinearLayer, NormLayer, RotaryLayer
from engine_core.layers.rotary import rotate


class TorchLinear(LinearLayer):
    """The weight [N, K] is kept row by row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight = weight.clone()
        self.bias = None if bias is None else bias.clone()

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(
        self,
        x: torch.Tensor,
        *,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        y = torch.nn.functional.linear(x, self.weight, self.bias).to(dtype or x.dtype)
        y = y if scale == 1.0 else y.mul_(scale)
        return y if residual is None else residual + y

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(indices, self.weight)


class TorchNorm:
    """Computed in float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> None:
        self.weight = weight.clone()
        self.bias = None if bias is None else bias.clone()
        self.eps = eps

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, in_place: bool = False
    ) -> torch.Tensor:
        if self.bias is None:
            y = torch.nn.functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)
        else:
            y = torch.nn.functional.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps)
        if residual is not None:
            y = residual.float() + y
        return x.copy_(y) if in_place else y.to(x.dtype)


class TorchRotary:
    """Normalization and rotation of heads, computed in float32."""

    def __init__(self, shape: HeadsShape, norms: HeadNorms | None) -> None:
        self._shape = shape
        self._norms = norms

    @property
    def nbytes(self) -> int:
        return 0 if self._norms is None else self._norms.stacked().nbytes

    def __call__(self, heads: torch.Tensor, angles: Angles | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shape, norms = self._shape, self._norms
        counts = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        query, key, value = torch.split(heads.float(), counts, dim=1)
        if norms is not None:
            query, key = self._normalize(query, norms.query), self._normalize(key, norms.key)
            value = value if norms.value is None else self._normalize(value, norms.value)
        if angles is not None:
            query, key = (rotate(x, angles, interleaved=shape.interleaved) for x in (query, key))
            query = query if angles.query_scales is None else query * angles.query_scales
        return query.to(heads.dtype), key.to(heads.dtype), value.to(heads.dtype)

    def _normalize(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert self._norms is not None
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self._norms.eps)


class TorchBackend(LayerBackend):
    """Everything by torch."""

    batch_invariant = False

    def numerics(self) -> str:
        return "torch"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearLayer:
        return TorchLinear(weight, bias)

    def norm(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, width: int) -> NormLayer:
        return TorchNorm(weight, bias, eps)

    def rotary(self, shape: HeadsShape, norms: HeadNorms | None) -> RotaryLayer:
        return TorchRotary(shape, norms)

    def act_and_mul(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (activation(gate) * up).to(gate_up.dtype)

    def activate(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        return activation(x.float()).to(x.dtype)

    def add_gated(self, x: torch.Tensor, logits: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return (residual.float() + logits.sigmoid() * x.float()).to(x.dtype)
