"""Memory of a serving process: its resident size, how often Python's garbage collector runs, and malloc's free memory.

A full collection stops every thread and visits every object that may be part of a cycle: with a service's modules
loaded that takes tens to hundreds of milliseconds, and recurs under load. It frees almost nothing: the garbage of
requests has few cycles, and reference counts free the rest.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_GC_THRESHOLD = 10_000
"""Allocations minus deallocations that start a young collection. Python's default is 700, which hundreds of requests
in flight reach in every step, without any garbage to find."""

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
"""glibc's ``mallopt`` and ``malloc_trim``; other C libraries lack them."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAX_FREE_AT_TOP = 512 << 10
_MIN_MAPPED = 256 << 10
_PAGE_BYTES = 4096


def resident_memory() -> int:
    """Resident set size of this process, in bytes."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES


@contextmanager
def collection_paused() -> Iterator[None]:
    """Speeds up importing thousands of modules by a fifth; their objects stay frozen until the process serves."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_loaded_objects() -> None:
    """Exclude the present objects from garbage collection (``gc.freeze``). Call it when the process begins to serve."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def limit_malloc_retention() -> None:
    """Make glibc's malloc keep little free memory from now on. Call it before threads begin.

    glibc has several arenas for its threads, and keeps free memory at the top of each, up to twice the largest block
    that was ever freed (at most 64 MiB): after a few large messages that is megabytes per arena, and ``malloc_trim``
    returns only the main arena's. With fixed limits it keeps 512 KiB, and gets large blocks by mmap. Not for an engine:
    it allocates and frees tensors of that size in every step.
    """
    if _mallopt is not None:
        _mallopt(_M_TRIM_THRESHOLD, _MAX_FREE_AT_TOP)
        _mallopt(_M_MMAP_THRESHOLD, _MIN_MAPPED)


def trim_malloc() -> None:
    """Return malloc's free memory to the system, after work on large objects. Takes a few milliseconds."""
    if _malloc_trim is not None:
        _malloc_trim(0)
