"""Adapters for a layer of any shape, and what they add by any ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from engine_core.ops.lora import LoRAOp, LoRAOps, LoRAOutputs, LoRAWeights, PackedAdapter, RowsByAdapter, StepAdapters

from .experts import numbers


class Part(NamedTuple):
    """Outputs of a layer, and how many ranks add to them."""

    columns: Sequence[int]
    ranks: int


class Shape(NamedTuple):
    """A layer of G groups."""

    groups: int
    inputs: int
    outputs: int
    a_groups: int = 1
    b_groups: int = 1

    def numbers(self, rows: int, width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
        shape = (rows, width) if self.groups == 0 else (rows, self.groups, width)
        return numbers(*shape, dtype=dtype, seed=seed)


LINEAR = Shape(0, 208, 1200)
ADAPTERS: list[list[Part]] = [
    [Part(range(500), 16), Part(range(500, 850), 5), Part(range(850, 1200), 64)],
    [Part(range(1200), 8)],
    [Part(range(30, 37), 1)],
    [Part([*range(16), *range(24, 40), *range(41, 90, 2)], 33), Part([17, 1199], 3)],
    [Part(range(850, 1200), 16)],
]
"""Parts that begin in the middle of panels, some outputs between them that no part has, and odd ranks."""
LAYERS = {
    "linear": LINEAR,
    "shared A": Shape(3, 64, 1200, 1, 3),
    "shared B": Shape(3, 64, 1200, 3, 1),
    "one group": Shape(1, 1040, 1200),
}


def weights(shape: Shape, parts: Sequence[Part], seed: int) -> LoRAWeights:
    """Random ones; the ranks of the parts follow each other, the last part's first."""
    total = sum(part.ranks for part in parts)
    lead_a, lead_b = ((), ()) if shape.groups == 0 else ((shape.a_groups,), (shape.b_groups,))
    end, outputs = total, []
    for place, part in enumerate(parts):
        b = numbers(*lead_b, len(part.columns), part.ranks, dtype=torch.float32, seed=seed + place + 1)
        outputs.append(LoRAOutputs(range(end - part.ranks, end), torch.tensor(part.columns), b))
        end -= part.ranks
    a = numbers(*lead_a, total, shape.inputs, dtype=torch.float32, seed=seed, size=shape.inputs**-0.5)
    return LoRAWeights(a, numbers(total, dtype=torch.float32, seed=seed).abs() + 0.5, tuple(outputs))


@dataclass(frozen=True)
class Layer:
    """A layer, and adapters for it; all but the last layer of the model are untouched."""

    shape: Shape
    ops: LoRAOps
    op: LoRAOp
    adapters: list[PackedAdapter]

    @classmethod
    def make(cls, ops: LoRAOps, shape: Shape, adapters: Sequence[Sequence[Part]], dtype: torch.dtype) -> Layer:
        groups, inputs, outputs = shape[:3]
        op = [ops.grouped_linear(groups, inputs, outputs) if groups else ops.linear(inputs, outputs) for _ in range(3)]
        packed = [ops.pack({2: weights(shape, parts, 10 * i)}, dtype) for i, parts in enumerate(adapters)]
        return cls(shape, ops, op[2], packed)

    def step(
        self, places: Sequence[int], wanted: Sequence[int] = (), order: Sequence[int] | None = None
    ) -> StepAdapters:
        """Row i has the adapter ``places[i]``; the step has those of ``order``."""
        order = range(len(self.adapters)) if order is None else order
        among = np.array([order.index(place) if place >= 0 else -1 for place in places], np.intp)
        groups = [RowsByAdapter.of(each, len(order)) for each in (among, among[np.array(wanted, np.intp)])]
        return StepAdapters(tuple(self.adapters[place] for place in order), len(places), *groups)

    def added(self, x: torch.Tensor, y: torch.Tensor, step: StepAdapters, scale: float = 1.0) -> torch.Tensor:
        """What becomes of ``y``."""
        y = y.clone()
        with self.ops.computing(step):
            self.op(x, y, scale)
        return y


def places_of(rows: int, count: int, seed: int = 0) -> list[int]:
    return [int(place) for place in np.random.default_rng(seed).integers(-1, count, rows)]
