"""Random weights for measuring, made without reading a file."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping

import torch

from engine_core.weights.quantized_weight import Offset, QuantFormat, QuantizedWeight
from engine_core.weights.source import ProgressCallback, Staging, TensorRows

_STANDARD_DEVIATION = 0.02
_POOL_SIZE = 2**20 + 7
_INNER_SCALE = 32
"""The inner scale of formats with two levels of scales."""


class DummyWeights:
    """Normal weights of standard deviation 0.02, zero biases, norms of one.

    Drawing billions of normals takes minutes, so one pool is repeated, with a different start for each tensor.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """``shapes`` are those of all tensors that will be taken; equal arguments make equal weights."""
        generator = torch.Generator().manual_seed(seed)
        pool = (torch.randn(_POOL_SIZE, generator=generator) * _STANDARD_DEVIATION).to(dtype)
        self.dtype = dtype
        self._pool = pool.to(device).repeat(2)
        self._shapes = shapes
        self._quantized: dict[QuantFormat, DummyQuantized] = {}
        self._staging = Staging(dtype, device)
        self._on_progress = on_progress
        self._done = 0
        self._total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize

    def take(self, *tensors: str | TensorRows) -> torch.Tensor:
        pieces = [each if isinstance(each, TensorRows) else self._all_rows(each) for each in tensors]
        counts, shape = [len(piece.rows) for piece in pieces], self._shapes[pieces[0].name]
        tensor = self._staging.make((sum(counts), *shape[1:]))
        for piece, part in zip(pieces, torch.split(tensor, counts), strict=True):
            self._fill(piece.name, part, piece.rows.start)
        self._done += sum(len(piece.rows) for piece in set(pieces)) * math.prod(tensor.shape[1:]) * tensor.itemsize
        if self._on_progress is not None:
            self._on_progress(min(self._done, self._total), self._total)
        return tensor if shape else tensor[0]

    def _all_rows(self, name: str) -> TensorRows:
        """Of a scalar, one."""
        count = self._shapes[name][0] if self._shapes[name] else 1
        return TensorRows(name, count, range(count))

    def take_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
        shape = self._shapes[name][1:]
        row = self._staging.make(shape if rows is None else (len(rows), *shape[1:]))
        self._fill(f"{name}.{index}", row, 0 if rows is None else rows.start)
        self._done += row.nbytes
        return row

    def take_table(self, tensor: str | TensorRows) -> torch.Tensor:
        return self.take(tensor)

    def make_quantized(self, kept: QuantFormat, piece: TensorRows, inputs: int) -> Iterator[QuantizedWeight]:
        """Random codes, with scales that give the same standard deviation as other weights."""
        if kept not in self._quantized:
            self._quantized[kept] = DummyQuantized(kept)
        made, at_once = self._quantized[kept], max(1, _POOL_SIZE // inputs)
        for first in range(piece.rows.start, piece.rows.stop, at_once):
            codes = torch.empty(min(at_once, piece.rows.stop - first), inputs, dtype=torch.uint8)
            self._repeat(piece.name, codes, made.codes, first)
            self._done += kept.nbytes(*codes.shape)
            yield made.weight(codes)

    def take_stored(self, name: str, *place: int | slice) -> torch.Tensor:
        raise AssertionError(f"{name}: quantized weights are made up by make_quantized")

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
        """Fill ``tensor``, which begins at row ``first_row`` of the tensor ``name``."""
        skipped = first_row * math.prod(tensor.shape[1:])
        start = (zlib.crc32(name.encode()) + skipped) % _POOL_SIZE
        for piece in torch.split(tensor.view(-1), _POOL_SIZE):
            piece.copy_(pool[start : start + len(piece)])


class DummyQuantized:
    """Weights of one format: random codes and a constant scale."""

    def __init__(self, kept: QuantFormat) -> None:
        codebook = torch.tensor(kept.codebook)
        usable = codebook.isfinite().nonzero()[:, 0].to(torch.uint8)
        drawn = torch.randint(len(usable), (_POOL_SIZE,), generator=torch.Generator().manual_seed(0))
        self.codes = usable[drawn].repeat(2)
        self._format = kept
        self._scale = _STANDARD_DEVIATION / codebook[usable.int()].std().item()
        self._mean = codebook[usable.int()].mean().item()

    def weight(self, codes: torch.Tensor) -> QuantizedWeight:
        """The weight with ``codes`` [N, K]."""
        kept, (outputs, inputs) = self._format, codes.shape
        groups = outputs, -(-inputs // kept.group_size)
        zeros = minima = outer = outer_minima = None
        if kept.offset is Offset.ZERO:
            zeros = torch.full(groups, max(0, round(self._mean)), dtype=torch.uint8)
        if kept.outer_size is None:
            scales = torch.full(groups, self._scale, dtype=kept.scale_dtype)
            if kept.offset is Offset.MINIMUM:
                minima = -self._mean * scales
        else:
            scales = torch.full(groups, _INNER_SCALE, dtype=torch.int8)
            outer_groups = outputs, -(-inputs // kept.outer_size)
            outer = torch.full(outer_groups, self._scale / _INNER_SCALE, dtype=kept.scale_dtype)
            if kept.offset is Offset.MINIMUM:
                minima, outer_minima = scales, -self._mean * outer
        return QuantizedWeight(kept, codes, scales, outer, zeros, minima, outer_minima)
