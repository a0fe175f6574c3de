"""Random weights of a model's shape, made without reading a file: for measuring."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import torch

from engine_core.loading.weights import ProgressCallback

_STANDARD_DEVIATION = 0.02
_POOL_SIZE = 2**20 + 7


class DummyWeights:
    """Normal weights of standard deviation 0.02, zero biases, norms of one.

    Drawing billions of normals takes minutes, so one pool of them is repeated, beginning elsewhere for each tensor.
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
        self._pool = (torch.randn(_POOL_SIZE, generator=generator) * _STANDARD_DEVIATION).to(dtype)
        self._shapes = shapes
        self._device = device
        self._on_progress = on_progress
        self._done = 0
        self._total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize

    def take(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if name.endswith(".bias"):
            tensor = torch.zeros(shape, dtype=self._pool.dtype)
        elif len(shape) == 1:
            tensor = torch.ones(shape, dtype=self._pool.dtype)
        else:
            tensor = self._draw(name, math.prod(shape)).view(shape)
        self._done += tensor.nbytes
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)
        return tensor.to(self._device)

    def _draw(self, name: str, count: int) -> torch.Tensor:
        start = zlib.crc32(name.encode()) % _POOL_SIZE
        repeats = -(-(start + count) // _POOL_SIZE)
        return self._pool.repeat(repeats)[start : start + count]
