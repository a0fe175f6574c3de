"""The shapes of linear layers: how their inputs and outputs are grouped, and padded for a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from engine_core.weights.source import TensorRows


class Pads(Protocol):
    """What of an ``OpsBackend`` decides the padding."""

    def padded(self, width: int) -> int:
        """``width`` rounded up to what the kernels need."""


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

    def padded(self, backend: Pads) -> int:
        """The size of a group with its padding."""
        return self.size if self.fixed else sum(backend.padded(part) for part in self.parts or (self.size,))

    def pad(self, x: torch.Tensor, dim: int, backend: Pads) -> torch.Tensor:
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
    """A linear layer made of rows of one or several tensors of a checkpoint, whose outputs lie side by side."""

    pieces: tuple[TensorRows, ...]
    """Without ``.weight`` and ``.bias``, in the order of the outputs; one may be there twice."""
    inputs: Features
    outputs: Features
    bias: bool

    @classmethod
    def of(cls, name: str, inputs: Features, outputs: Features, *, bias: bool = False) -> Self:
        """All of one tensor."""
        return cls((TensorRows(name, outputs.count, range(outputs.count)),), inputs, outputs, bias)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(piece.name for piece in self.pieces))

    @property
    def num_weights(self) -> int:
        """Numbers in the checkpoint that it is made of, biases among them."""
        rows = sum(len(piece.rows) for piece in dict.fromkeys(self.pieces))
        return rows * (self.inputs.count + (1 if self.bias else 0))


def rows_of(names: tuple[str, ...], counts: tuple[int, ...], taken: Sequence[range]) -> tuple[TensorRows, ...]:
    """Where the ``taken`` rows are, if tensors of that many rows lie one after the other.

    Neighbouring rows of a tensor are one piece: who takes them all takes the tensor as it is.
    """
    if taken == [range(sum(counts))]:
        return tuple(TensorRows(name, count, range(count)) for name, count in zip(names, counts, strict=True))
    pieces: list[TensorRows] = []
    for wanted in taken:
        first = 0
        for name, count in zip(names, counts, strict=True):
            rows = range(max(0, wanted.start - first), min(count, wanted.stop - first))
            if rows and pieces and pieces[-1].name == name and pieces[-1].rows.stop == rows.start:
                pieces[-1] = TensorRows(name, count, range(pieces[-1].rows.start, rows.stop))
            elif rows:
                pieces.append(TensorRows(name, count, rows))
            first += count
    return tuple(pieces)
