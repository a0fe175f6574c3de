"""Python's garbage collector in a process that serves: it looks seldom, and not at what is there for good.

A full collection visits every object that may be part of a cycle, with every thread stopped: with the modules of a
service loaded, tens to hundreds of milliseconds, again and again while requests come and go. Almost nothing that they
leave behind is a cycle; reference counts free the rest.
"""

from __future__ import annotations

import gc

_THRESHOLD = 10_000
"""Objects made and not freed until the young are looked at. Python's is 700, which hundreds of requests under way come
to in every step, without anything to be found."""


def spare_what_is_loaded() -> None:
    """Never look again at what is there now. Call it when a process has loaded what it keeps, and begins to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
