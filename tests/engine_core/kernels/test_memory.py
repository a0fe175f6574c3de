"""Memory that is taken at once is there, and holds what it held."""

from __future__ import annotations

import ctypes
import mmap
import platform

import pytest
import torch

from engine_core.kernels.memory import empty_for_streaming, take_now

MIB = 1 << 20


def held_by(tensor: torch.Tensor) -> int:
    """Bytes that the system has given for a tensor, whatever else this process is given or frees."""
    first = tensor.untyped_storage().data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = tensor.untyped_storage().data_ptr() + tensor.untyped_storage().nbytes() - first
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(size), pages) == 0
    return mmap.PAGESIZE * sum(page & 1 for page in pages)


@pytest.mark.skipif(tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="this system cannot do it")
def test_memory_is_taken_before_it_is_written() -> None:
    tensor = empty_for_streaming((64, MIB), torch.uint8)[:, : MIB - 1]
    tensor[1, 3] = 7
    assert held_by(tensor) < 8 * MIB
    take_now(tensor)
    assert held_by(tensor) >= 64 * MIB
    assert tensor[1, 3] == 7
    assert tensor[40].count_nonzero() == 0
