"""Asynchronous copies between the host and a device: arrays up, results down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16
"""Alignment of arrays in bytes, which kernels may assume."""

Array = npt.NDArray[Any]


def offsets_of(sizes: Sequence[int]) -> list[int]:
    """The beginnings of aligned, consecutive arrays of ``sizes`` bytes, and the end of the last."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return offsets


def upload(arrays: Sequence[Array], device: torch.device, into: torch.Tensor | None = None) -> list[torch.Tensor]:
    """The ``arrays`` on ``device``, by one asynchronous copy.

    They are copied to the beginning of ``into`` (uint8) if given. Without it, on a CPU, the result shares the arrays'
    memory. torch keeps the pinned host memory until the copy is done.
    """
    if device.type == "cpu" and into is None:
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    sizes = [array.nbytes for array in arrays]
    offsets = offsets_of(sizes)
    host = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = host.numpy()
    for array, offset, size in zip(arrays, offsets, sizes, strict=False):
        memory[offset : offset + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    target = torch.empty(offsets[-1], dtype=torch.uint8, device=device) if into is None else into[: offsets[-1]]
    there = target.copy_(host, non_blocking=True)
    return [
        _view(there, offset, array.shape, torch.from_numpy(array[:0]).dtype)
        for array, offset in zip(arrays, offsets, strict=False)
    ]


def _view(memory: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    size = dtype.itemsize * int(np.prod(shape))
    return memory[offset : offset + size].view(dtype).view(shape)


class AsyncCopy:
    """A copy from a device to the host. ``wait`` does not wait for work launched later."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Start copying into pinned memory. Tensors already on the host are not copied."""
        self._host = list(tensors)
        self._arrived: torch.cuda.Event | None = None
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return
        self._host = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for copy, tensor in zip(self._host, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived.record()

    def wait(self) -> list[torch.Tensor]:
        """Wait for the copy; returns the tensors on the host."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host
