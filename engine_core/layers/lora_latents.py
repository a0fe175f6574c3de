"""What adapters add to a projection from latents to keys and values, which ``layers/mla.py`` absorbs.

To the projection of a head, B · A of the adapter is added. Its keys' part turns queries into latents, by B and then by
A, both transposed; its values' part turns latents into values, by A and then by B. A is the same for all heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from engine_core.lora.adapter import LoRAMatrices
from engine_core.lora.targets import LinearTarget
from engine_core.ops.lora import LoRAOp, LoRAOps, LoRAOutputs, LoRAWeights
from engine_core.weights.source import TensorRows


@dataclass(frozen=True, slots=True)
class LatentsShape:
    """A projection from latents, whose rows are, head by head, those of keys and those of values."""

    rows: TensorRows
    """Those of this rank's heads."""
    latent: int
    """Width of a latent."""
    key: int
    """Rows of a head's keys."""
    value: int

    @property
    def heads(self) -> int:
        return len(self.rows.rows) // (self.key + self.value)

    @property
    def target(self) -> LinearTarget:
        return LinearTarget(outputs=self.rows.count, inputs=self.latent)


class LoRALatents:
    """Adds to a layer's keys and values."""

    def __init__(self, shape: LatentsShape, ops: LoRAOps, padded: Callable[[int], int]) -> None:
        """``padded``: the backend's."""
        self.shape = shape
        self._padded = padded
        latent, key, value = (padded(width) for width in (shape.latent, shape.key, shape.value))
        self.keys: LoRAOp = ops.grouped_linear(shape.heads, key, latent)
        """Queries [T, Hq, nope] to latents [T, Hq, R]."""
        self.values: LoRAOp = ops.grouped_linear(shape.heads, latent, value)
        """Latents [T, Hq, R] to values [T, Hq, V]."""

    def most_numbers(self, rank: int) -> int:
        """Numbers of an adapter of ``rank`` ranks."""
        shape, padded = self.shape, self._padded
        return rank * (2 * padded(shape.latent) + shape.heads * (padded(shape.key) + padded(shape.value)))

    def weights(self, matrices: LoRAMatrices) -> Iterator[tuple[LoRAOp, LoRAWeights]]:
        """Those of the two ops."""
        shape, rank = self.shape, matrices.rank
        rows = shape.rows.rows
        of_heads = matrices.b[rows.start : rows.stop].float().view(shape.heads, -1, rank)
        keys, values = torch.split(of_heads, [shape.key, shape.value], dim=1)
        scales = torch.full((rank,), matrices.scaling)
        a = matrices.a.float()
        for op, first, second in ((self.keys, keys.mT, a.T), (self.values, a, values)):
            first = torch.nn.functional.pad(first, (0, self._padded(first.shape[-1]) - first.shape[-1]))
            yield op, LoRAWeights(first, scales, (LoRAOutputs(range(rank), torch.arange(second.shape[-2]), second),))
