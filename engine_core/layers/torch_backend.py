"""Layers by plain torch: the reference in tests, and the fallback where no native kernels could be built.

A row's bits may depend on the other rows here: torch chooses its kernels by the number of rows.
"""

from __future__ import annotations

import torch

from engine_core.layers.base import LayerBackend, LinearLayer, NormLayer, RotaryLayer
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
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        y = torch.nn.functional.linear(x, self.weight, self.bias).to(dtype or x.dtype)
        return y if residual is None else residual + y

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(indices, self.weight)


class TorchNorm:
    """Computed in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight.clone()
        self.eps = eps

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def __call__(
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, in_place: bool = False
    ) -> torch.Tensor:
        y = torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        if residual is not None:
            y = residual + y
        return x.copy_(y) if in_place else y


class TorchRotary:
    """Normalization and rotation of queries and keys, computed in float32."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, norms: tuple[torch.Tensor, torch.Tensor] | None, eps: float
    ) -> None:
        self._heads = (num_heads, num_kv_heads)
        self._eps = eps
        self._weight: torch.Tensor | None = None
        """[Hq + Hkv, D] float32: the norm's weight for each head, in the order of the fused projection."""
        if norms is not None:
            self._weight = torch.cat([norms[0].expand(num_heads, -1), norms[1].expand(num_kv_heads, -1)]).float()

    @property
    def nbytes(self) -> int:
        return 0 if self._weight is None else self._weight.nbytes

    def __call__(
        self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        num_heads, num_kv_heads = self._heads
        queries_and_keys, value = torch.split(heads, [num_heads + num_kv_heads, num_kv_heads], dim=1)
        if self._weight is not None:
            x = queries_and_keys.float()
            queries_and_keys = torch.nn.functional.rms_norm(x, x.shape[-1:], None, self._eps) * self._weight
        rotated = rotate(queries_and_keys, cos, sin).to(heads.dtype)
        query, key = torch.split(rotated, [num_heads, num_kv_heads], dim=1)
        return query, key, value


class TorchBackend(LayerBackend):
    """Everything by torch."""

    batch_invariant = False

    def numerics(self) -> str:
        return "torch"

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearLayer:
        return TorchLinear(weight, bias)

    def rms_norm(self, weight: torch.Tensor, eps: float, width: int) -> NormLayer:
        return TorchNorm(weight, eps)

    def rotary(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
    ) -> RotaryLayer:
        return TorchRotary(num_heads, num_kv_heads, norms, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
