"""Memory that is read from end to end in every step."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

_HUGE_PAGE = 2 << 20


def empty_for_streaming(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of that shape with unspecified contents, in pages of 2 MiB where the system gives them.

    With pages of 4 KiB the processor looks up an address for every 64 cache lines, and stops reading ahead at each
    page's end. The memory is taken as it is first written. Raises ``RuntimeError`` when the system refuses it.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _HUGE_PAGE:
        return torch.empty(shape, dtype=dtype)
    try:
        # One page more than is needed, so that the tensor begins where a huge page does.
        memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no memory for {size} bytes: {error}") from error
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE
    with contextlib.suppress(OSError, AttributeError):  # a system without such pages
        # The rest, which would not fill one, stays in small pages.
        memory.madvise(mmap.MADV_HUGEPAGE, start, size // _HUGE_PAGE * _HUGE_PAGE)
    return whole[start : start + size].view(dtype).view(shape)
