"""The shapes of linear layers: how their inputs and outputs are grouped, and padded for a backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.ops.base import OpsBackend


@dataclass(frozen=True, slots=True)
class Features:
    """The inputs or the outputs of a linear layer: ``groups`` (heads, gate and up) of ``size`` features each.

    Each group is padded on its own, so that a head begins where its kernel expects it.
    """

    groups: int
    size: int
    fixed: bool = False
    """Never padded: nothing reads these outputs in whole registers."""
    parts: tuple[int, ...] = ()
    """Sizes of a group's parts, each of which is padded on its own; () for a single part."""

    @property
    def count(self) -> int:
        """Features without padding."""
        return self.groups * self.size

    def padded(self, backend: OpsBackend) -> int:
        """The size of a group with its padding."""
        return self.size if self.fixed else sum(backend.padded(part) for part in self.parts or (self.size,))

    def pad(self, x: torch.Tensor, dim: int, backend: OpsBackend) -> torch.Tensor:
        """``x``, which has these features along ``dim``, with zeros after each part; ``x`` itself without padding."""
        if (size := self.padded(backend)) == self.size:
            return x
        grouped = x.reshape(*x.shape[:dim], self.groups, self.size, *x.shape[dim + 1 :])
        padded = x.new_zeros(*x.shape[:dim], self.groups, size, *x.shape[dim + 1 :])
        source = target = 0
        for part in self.parts or (self.size,):
            padded.narrow(dim + 1, target, part).copy_(grouped.narrow(dim + 1, source, part))
            source, target = source + part, target + backend.padded(part)
        return padded.flatten(dim, dim + 1)


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer made of one or several tensors of a checkpoint, whose outputs lie side by side."""

    names: tuple[str, ...]
    """Names of the checkpoint's tensors, without ``.weight`` and ``.bias``."""
    rows: tuple[int, ...]
    """Outputs of each of them."""
    inputs: Features
    outputs: Features
    bias: bool
