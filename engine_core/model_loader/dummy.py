"""Random weights of a model's shape, made without reading a file: for measuring."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import torch

from engine_core.layers.weights import ProgressCallback, Staging, TensorRows

_STANDARD_DEVIATION = 0.02
_POOL_SIZE = 2**20 + 7
_MXFP4_SCALE = 119


class DummyWeights:
    """Normal weights of standard deviation 0.02, zero biases, norms of one.

    Drawing billions of normals takes minutes, so one pool of them is repeated, starting elsewhere for each tensor.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """``shapes`` are the tensors that will be taken; equal arguments make equal weights."""
        generator = torch.Generator().manual_seed(seed)
        pool = (torch.randn(_POOL_SIZE, generator=generator) * _STANDARD_DEVIATION).to(dtype)
        self.dtype = dtype
        self._pool = pool.to(device).repeat(2)
        self._shapes = shapes
        self._staging = Staging(dtype, device)
        self._on_progress = on_progress
        self._done = 0
        self._total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize

    def take(self, *tensors: str | TensorRows) -> torch.Tensor:
        pieces = [each if isinstance(each, TensorRows) else self._all_rows(each) for each in tensors]
        counts = [len(piece.rows) for piece in pieces]
        tensor = self._staging.make((sum(counts), *self._shapes[pieces[0].name][1:]))
        for piece, part in zip(pieces, torch.split(tensor, counts), strict=True):
            self._fill(piece.name, part, piece.rows.start)
        self._done += sum(len(piece.rows) for piece in set(pieces)) * math.prod(tensor.shape[1:]) * tensor.itemsize
        if self._on_progress is not None:
            self._on_progress(min(self._done, self._total), self._total)
        return tensor

    def _all_rows(self, name: str) -> TensorRows:
        count = self._shapes[name][0]
        return TensorRows(name, count, range(count))

    def take_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
        shape = self._shapes[name][1:]
        row = self._staging.make(shape if rows is None else (len(rows), *shape[1:]))
        self._fill(f"{name}.{index}", row, 0 if rows is None else rows.start)
        self._done += row.nbytes
        return row

    def take_table(self, tensor: str | TensorRows) -> torch.Tensor:
        return self.take(tensor)

    def take_bytes_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
        """Arbitrary ones, and for the scales of MXFP4 one that makes weights about as large as the others."""
        row = torch.empty(self._shapes[name][1:], dtype=torch.uint8, device=self._pool.device)
        if name.endswith("_scales"):
            row.fill_(_MXFP4_SCALE)
        else:
            self._repeat(f"{name}.{index}", row, self._pool.view(torch.uint8), 0)
        row = row if rows is None else row[rows.start : rows.stop]
        self._done += row.numel() * self._pool.itemsize
        return row

    def take_stored(self, name: str, *place: int | slice) -> torch.Tensor:
        raise NotImplementedError("dummy weights of quantized checkpoints")

    def take_float32(self, name: str) -> torch.Tensor:
        return self.take(name).to(torch.float32, copy=True)

    def _fill(self, name: str, tensor: torch.Tensor, first_row: int) -> None:
        if name.endswith(".bias"):
            tensor.zero_()
        elif tensor.ndim <= 1:
            tensor.fill_(1.0)
        else:
            self._repeat(name, tensor, self._pool, first_row)

    @staticmethod
    def _repeat(name: str, tensor: torch.Tensor, pool: torch.Tensor, first_row: int) -> None:
        """Fill ``tensor``, which begins with row ``first_row`` of the tensor of that name."""
        skipped = first_row * math.prod(tensor.shape[1:])
        start = (zlib.crc32(name.encode()) + skipped) % _POOL_SIZE
        for piece in torch.split(tensor.view(-1), _POOL_SIZE):
            piece.copy_(pool[start : start + len(piece)])
