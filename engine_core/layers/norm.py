"""Normalization over the last dimension: RMS norm and layer norm."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine_core.layers.part import Part
from engine_core.layers.shares import OwnHeads
from engine_core.ops.base import NormOp, OpsBackend
from engine_core.weights.features import Features
from engine_core.weights.source import Weights


class Norm(Part):
    """The base of both norms."""

    op: NormOp

    def __init__(
        self, name: str | None, features: Features, eps: float, backend: OpsBackend, device: torch.device
    ) -> None:
        """Over all ``features``; without a name, weights are ones and biases zeros."""
        self._name = name
        self._features = features
        self._eps = eps
        self._backend = backend
        self._device = device

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of ``values`` [W], each group padded with zeros."""
        return self._features.pad(values.clone(), 0, self._backend)

    @property
    def nbytes(self) -> int:
        return self.op.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Normalized ``x`` [T, W], whose rows may lie apart, or [T, G, W], by groups; plus ``residual``."""
        return self.op(x, residual=residual)

    def in_place(self, x: torch.Tensor) -> None:
        """Normalize the rows of ``x`` [T, W], which may lie apart, in place."""
        self.op(x, in_place=True)


class RMSNorm(Norm):
    """Division by the root mean square (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467)."""

    def __init__(
        self,
        name: str | None,
        features: Features,
        eps: float,
        backend: OpsBackend,
        device: torch.device,
        offset: float = 0.0,
        tensor: str = "weight",
        scale: float | str = 1.0,
    ) -> None:
        """``offset`` is added to the weights. ``scale``: a number, or a tensor [1]."""
        super().__init__(name, features, eps, backend, device)
        self._tensor = tensor
        self._offset = offset
        self._scale = scale

    def tensors(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        if self._name is not None:
            shapes[f"{self._name}.{self._tensor}"] = (self._features.count,)
        if isinstance(self._scale, str):
            shapes[self._scale] = (1,)
        return shapes

    def load(self, weights: Weights) -> None:
        if self._name is None:
            weight = torch.ones(self._features.count, device=self._device)
        else:
            weight = weights.take(f"{self._name}.{self._tensor}").float() + self._offset
        weight = self._padded(weight)
        scale = weights.take_float32(self._scale).item() if isinstance(self._scale, str) else self._scale
        self.op = self._backend.norm(weight, None, self._eps, self._features.count, scale)


class HeadsRMSNorm(RMSNorm):
    """RMS norm over all heads of a row, of which a rank has and normalizes some."""

    def __init__(
        self, name: str, features: Features, eps: float, backend: OpsBackend, device: torch.device, own: OwnHeads
    ) -> None:
        """``features``: all heads."""
        super().__init__(name, features, eps, backend, device)
        self._own = own

    def load(self, weights: Weights) -> None:
        features, heads = self._features, self._own.heads
        weight = weights.take(f"{self._name}.{self._tensor}").float().view(features.groups, -1)
        own = replace(features, groups=len(heads))
        weight = own.pad(weight[heads.start : heads.stop].flatten(), 0, self._backend)
        self.op = self._backend.norm(weight, None, self._eps, features.count)

    def in_place(self, x: torch.Tensor) -> None:
        """``x`` [T, own heads · D]."""
        gather = self._own.gather
        self.op(x, in_place=True, over=None if gather is None else gather(x))


class LayerNorm(Norm):
    """Subtracts the mean, divides by the deviation, and adds a bias (Ba et al., 2016, https://arxiv.org/abs/1607.06450)."""

    def __init__(
        self,
        name: str | None,
        features: Features,
        eps: float,
        backend: OpsBackend,
        device: torch.device,
        *,
        bias: bool = True,
    ) -> None:
        """Over all ``features``; without a name, weights are ones, and without a ``bias``, biases are zeros."""
        super().__init__(name, features, eps, backend, device)
        self._has_bias = bias

    def tensors(self) -> dict[str, tuple[int, ...]]:
        kinds = () if self._name is None else ("weight", "bias") if self._has_bias else ("weight",)
        return {f"{self._name}.{kind}": (self._features.count,) for kind in kinds}

    def load(self, weights: Weights) -> None:
        count = self._features.count
        weight, bias = torch.ones(count, device=self._device), torch.zeros(count, device=self._device)
        # What is taken is valid only until the next is taken.
        taken = [self._padded(weights.take(name).float()) for name in self.tensors()]
        weight, bias = [*taken, *map(self._padded, (weight, bias)[len(taken) :])]
        self.op = self._backend.norm(weight, bias, self._eps, count)
