"""From the host's memory to a device's: several arrays in one copy, from memory that the device can read itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16
"""Bytes to whose multiple an array is placed: what kernels may assume of a pointer."""

Array = npt.NDArray[Any]


def places_of(sizes: Sequence[int]) -> list[int]:
    """Where arrays of so many bytes begin, one behind the other; and the end of the last."""
    places = [0]
    for size in sizes:
        places.append(places[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return places


def upload(arrays: Sequence[Array], device: torch.device, into: torch.Tensor | None = None) -> list[torch.Tensor]:
    """The ``arrays`` on ``device``, without waiting for it; at the beginning of ``into`` (uint8) where it is given.

    torch keeps the host's side until the copy has been made.
    """
    sizes = [array.nbytes for array in arrays]
    places = places_of(sizes)
    host = torch.empty(places[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = host.numpy()
    for array, place, size in zip(arrays, places, sizes, strict=False):
        memory[place : place + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    target = torch.empty(places[-1], dtype=torch.uint8, device=device) if into is None else into[: places[-1]]
    there = target.copy_(host, non_blocking=True)
    return [
        _view(there, place, array.shape, torch.from_numpy(array[:0]).dtype)
        for array, place in zip(arrays, places, strict=False)
    ]


def _view(memory: torch.Tensor, place: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    size = dtype.itemsize * int(np.prod(shape))
    return memory[place : place + size].view(dtype).view(shape)
