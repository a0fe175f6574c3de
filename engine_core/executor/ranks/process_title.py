"""The title of this process: what ``ps`` and ``top`` show. Linux only; elsewhere the command line stays."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

_ARG_START, _ARG_END = 47, 48
"""Fields of /proc/self/stat, from 0: where the command line is in memory (proc_pid_stat(5))."""


def set_process_title(title: str) -> None:
    """Replace the command line by ``title``, cut to its length."""
    with suppress(OSError, IndexError, ValueError):
        # What is in parentheses, a name, may have any characters.
        fields = ["", "", *Path("/proc/self/stat").read_text().rpartition(")")[2].split()]
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        room = end - start
        if room > 0:
            ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
