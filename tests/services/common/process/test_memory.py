"""What a process has loaded is spared by Python's garbage collector, and what is free goes back to the system."""

from __future__ import annotations

import sys

from tests.programs import output_of


def test_what_is_loaded_is_spared_and_what_loading_left_or_comes_later_is_collected() -> None:
    output_of(
        sys.executable,
        "-c",
        """
import gc, weakref
from services.common.process.memory import collection_paused, freeze_loaded_objects

class Node: pass

with collection_paused():
    assert not gc.isenabled()
    loaded, garbage = Node(), Node()
    garbage.itself = garbage
    left = weakref.ref(garbage)
    del garbage
assert gc.isenabled()
gc.collect()
assert left() is not None, "it is not visited"
freeze_loaded_objects()
assert left() is None
late = Node()
assert [one for one in gc.get_objects() if isinstance(one, Node)] == [late], "not what is loaded"
late.itself = late
del late
assert gc.collect() >= 1
""",
    )


def test_no_thread_keeps_what_it_freed() -> None:
    """Each has an arena of the C allocator's, of which ``malloc_trim`` does not give back what is free at its end."""
    output_of(
        sys.executable,
        "-c",
        """
import ctypes, threading
from services.common.process.memory import limit_malloc_retention, resident_memory, trim_malloc

limit_malloc_retention()
THREADS, BLOCKS, BLOCK, LARGE = 8, 50, 100 << 10, 8 << 20
c = ctypes.PyDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
freed, over = threading.Barrier(THREADS + 1), threading.Event()

def work():
    c.free(c.malloc(LARGE))
    blocks = [c.malloc(BLOCK) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    for block in blocks:
        c.free(block)
    freed.wait()
    over.wait()

before = resident_memory()
threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
for thread in threads:
    thread.start()
freed.wait()
trim_malloc()
left = resident_memory() - before
assert left < THREADS * BLOCKS * BLOCK / 4, left
over.set()
""",
    )
