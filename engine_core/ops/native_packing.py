"""The native kernels' layout of a weight: panels of 16 outputs, tiles of four panels (kernels/cpu/linear/linear.h)."""

from __future__ import annotations

import torch

from engine_core.kernels.memory import empty_for_streaming

PANEL = 16
"""Outputs of a panel; the number of inputs must be a multiple of it, too."""
TILE = 64
"""Outputs of a tile; weights are padded to whole tiles."""


def padded_width(width: int) -> int:
    """``width`` rounded up to whole panels."""
    return -(-width // PANEL) * PANEL


class PackedWeights:
    """Weights [N, K] of one size, one after the other; all have a bias [N] or none has."""

    def __init__(self, count: int, outputs: int, inputs: int, dtype: torch.dtype, *, bias: bool) -> None:
        """Memory for ``count`` weights; biases start as zeros."""
        self.packed = empty_for_streaming((count, *packed_shape(outputs, inputs, dtype)), dtype)
        """[count, N / 16, K / P, 16, P]"""
        self.bias = torch.zeros(count, self.packed.shape[1] * PANEL) if bias else None

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def pack(self, index: int, weight: torch.Tensor) -> None:
        """Copy ``weight`` [N, K]."""
        pack_rows(weight, self.packed[index])


def packed_shape(num_rows: int, width: int, dtype: torch.dtype) -> tuple[int, ...]:
    """[N / 16, K / P, 16, P] of a weight [N, K], N rounded up to whole tiles; P numbers are packed."""
    together = 2 if dtype == torch.bfloat16 else 1
    return (-(-num_rows // TILE) * (TILE // PANEL), width // together, PANEL, together)


def interleave(rows: torch.Tensor, tiles: torch.Tensor) -> None:
    """Copy ``rows`` [I, W] to ``tiles`` [tiles, outputs per tile, ≥ W]; the rest of the last tile stays."""
    size, width = tiles.shape[1], rows.shape[1]
    whole = len(rows) // size
    tiles[:whole, :, :width] = rows[: whole * size].reshape(whole, size, width)
    if rest := len(rows) % size:
        tiles[whole, :rest, :width] = rows[whole * size :]


def pack_rows(weight: torch.Tensor, target: torch.Tensor) -> None:
    """Write ``weight`` [N, K] to ``target`` of its ``packed_shape``, with zeros after its rows."""
    num_rows, width = weight.shape
    together = target.shape[-1]
    # Elements packed together are moved as one.
    words = torch.int32 if together == 2 else weight.dtype
    weight = weight.contiguous()
    if weight.storage_offset() % together:  # as after the layers' scales in Gemma 4 checkpoints
        weight = weight.clone()
    source, packed = weight.view(words), target.view(words).squeeze(-1)
    whole = num_rows // PANEL
    packed[:whole] = source[: whole * PANEL].view(whole, PANEL, width // together).transpose(1, 2)
    packed[whole:] = 0
    if num_rows % PANEL:
        packed[whole, :, : num_rows % PANEL] = source[whole * PANEL :].T
