"""The title of this process in ``ps`` and ``top``. Linux only; elsewhere the command line stays."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

_ARG_START, _ARG_END = 47, 48
"""Fields of /proc/self/stat, from 0: the addresses of the command line (proc_pid_stat(5))."""


def set_process_title(title: str) -> None:
    """Replace the command line by ``title``, cut to the command line's length."""
    with suppress(OSError, IndexError, ValueError):
        # The name in parentheses may contain any characters.
        fields = ["", "", *Path("/proc/self/stat").read_text().rpartition(")")[2].split()]
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        room = end - start
        if room > 0:
            ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)
