"""The shapes of linear layers: the grouping and padding of their inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from engine_core.weights.source import TensorRows


class Pads(Protocol):
    """The part of an ``OpsBackend`` that decides the padding."""

    def padded(self, width: int) -> int:
        """``width`` rounded up to what the kernels need."""


@dataclass(frozen=True, slots=True)
class Features:
    """The inputs or outputs of a linear layer: ``groups`` (heads, gate and up) of ``size`` features each.

    Each group is padded separately, so that a head begins where its kernel expects it.
    """

    groups: int
    size: int
    fixed: bool = False
    """Never padded: nothing reads these outputs in whole registers."""
    parts: tuple[int, ...] = ()
    """Sizes of a group's separately padded parts; () for a single part."""

    @property
    def count(self) -> int:
        """Number of features without padding."""
        return self.groups * self.size

    def padded(self, backend: Pads) -> int:
        """The padded size of a group."""
        return self.size if self.fixed else sum(backend.padded(part) for part in self.parts or (self.size,))

    def pad(self, x: torch.Tensor, dim: int, backend: Pads) -> torch.Tensor:
        """``x``, with these features along ``dim``, zero-padded after each part; ``x`` itself if nothing is to pad."""
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
    """A linear layer made of rows of one or several checkpoint tensors, with their outputs side by side."""

    pieces: tuple[TensorRows, ...]
    """Names without ``.weight`` and ``.bias``, in the order of the outputs; a piece may recur."""
    inputs: Features
    outputs: Features
    bias: bool

    @classmethod
    def of(cls, name: str, inputs: Features, outputs: Features, *, bias: bool = False) -> Self:
        """All rows of one tensor."""
        return cls((TensorRows(name, outputs.count, range(outputs.count)),), inputs, outputs, bias)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(piece.name for piece in self.pieces))

    @property
    def num_weights(self) -> int:
        """Number of its weights in the checkpoint, biases included."""
        rows = sum(len(piece.rows) for piece in dict.fromkeys(self.pieces))
        return rows * (self.inputs.count + (1 if self.bias else 0))


def rows_of(names: tuple[str, ...], counts: tuple[int, ...], taken: Sequence[range]) -> tuple[TensorRows, ...]:
    """The pieces of the ``taken`` rows, if tensors of ``counts`` rows are concatenated.

    Neighbouring rows of a tensor are one piece, so that all its rows are the tensor itself.
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
