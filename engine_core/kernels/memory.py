"""Memory for data that is read or written from end to end in every step."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import mmap
import os

import numpy as np
import numpy.typing as npt
import torch

_HUGE_PAGE, _CACHE_LINE = 2 << 20, 64
_MADV_POPULATE_WRITE = 23
"""Since Linux 5.14; Python's ``mmap`` lacks it, and would hold the interpreter's lock during the call."""


def streaming_bytes(size: int) -> npt.NDArray[np.uint8]:
    """[size], uninitialized, aligned to a cache line; in pages of 2 MiB if the system has them.

    With pages of 4 KiB the processor looks up an address for every 64 cache lines, and stops reading ahead at each
    page's end. The system allocates the memory as it is first written. Raises ``RuntimeError`` if it refuses.
    """
    if size < _HUGE_PAGE:
        # One line more than the alignment takes: kernels may read, never write, a vector past the end.
        memory = np.empty(size + 2 * _CACHE_LINE, np.uint8)
        return memory[-memory.ctypes.data % _CACHE_LINE :][:size]
    try:
        # One page more than needed, so that the array can start at a huge page.
        pages = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes: {error}") from error
    whole = np.frombuffer(pages, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE
    with contextlib.suppress(OSError, AttributeError):  # a system without such pages
        # The rest, which would not fill a huge page, stays in small pages.
        pages.madvise(mmap.MADV_HUGEPAGE, start, size // _HUGE_PAGE * _HUGE_PAGE)
    return whole[start : start + size]


def empty_for_streaming(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in ``streaming_bytes``. Raises ``RuntimeError`` if the system refuses them."""
    memory = streaming_bytes(math.prod(shape) * dtype.itemsize)
    return torch.from_numpy(memory).view(dtype).view(shape)


def take_now(tensor: torch.Tensor) -> None:
    """Have the system allocate a tensor's memory now, not page by page as it is first written.

    Contents are kept. Raises ``RuntimeError`` if there is too little; systems that cannot do this allocate it later.
    """
    storage = tensor.untyped_storage()
    start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (storage.data_ptr() + storage.nbytes() - start) // mmap.PAGESIZE * mmap.PAGESIZE
    madvise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    if madvise is None or size <= 0:
        return
    if madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_POPULATE_WRITE) != 0:
        code = ctypes.get_errno()
        if code != errno.EINVAL:
            raise RuntimeError(f"no memory for {size} bytes: {os.strerror(code)}")
