"""Memory in a process that serves: Python's garbage collector looks seldom, and what is free goes back to the system.

A full collection visits every object that may be part of a cycle, with every thread stopped: with the modules of a
service loaded, tens to hundreds of milliseconds, again and again while requests come and go. Almost nothing that they
leave behind is a cycle; reference counts free the rest.
"""

from __future__ import annotations

import ctypes
import gc

_THRESHOLD = 10_000
"""Objects made and not freed until the young are looked at. Python's is 700, which hundreds of requests under way come
to in every step, without anything to be found."""


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's; it keeps freed memory otherwise, where anything above it is still in use."""
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_FREE_AT_TOP = 512 << 10
_LEAST_MAPPED = 256 << 10


def spare_what_is_loaded() -> None:
    """Never look again at what is there now. Call it when a process has loaded what it keeps, and begins to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)


def keep_little_free_memory() -> None:
    """From now on let no part of the C allocator keep much that is free. Call it before threads begin.

    glibc has an arena for each of several threads, and keeps what is free at the top of each, up to twice the largest
    block that was ever freed (at most 64 MiB): after a few large messages that is megabytes in each of them, and
    ``malloc_trim`` gives back only the main arena's. With fixed limits it keeps 512 KiB, and maps large blocks apart.
    Not for an engine: its tensors are as large, and come and go with every step.
    """
    if _mallopt is not None:
        _mallopt(_M_TRIM_THRESHOLD, _MOST_FREE_AT_TOP)
        _mallopt(_M_MMAP_THRESHOLD, _LEAST_MAPPED)


def give_back_free_memory() -> None:
    """After work on something large: let the system have what the C allocator keeps. Takes a few milliseconds."""
    if _malloc_trim is not None:
        _malloc_trim(0)
