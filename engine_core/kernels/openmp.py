"""The OpenMP runtime that torch has loaded, shared with the native kernels: a process has one pool of threads."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from pathlib import Path

_RUNTIME = re.compile(r"lib(gomp|i?omp5?)\b.*\.so.*")
"""Files of runtimes that have GNU's entry points: GNU's, LLVM's and Intel's."""


def share_openmp() -> None:
    """Let libraries that are loaded from now on find the runtime that is loaded.

    On x86-64 they do already; torch's builds for aarch64 keep theirs to themselves.
    """
    if hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return
    with suppress(OSError):  # the kernels' library cannot be loaded then, and says what it lacks
        maps = Path("/proc/self/maps").read_text()
        loaded = dict.fromkeys(line.split(maxsplit=5)[-1] for line in maps.splitlines())
        runtimes = [name for name in loaded if _RUNTIME.fullmatch(Path(name).name)]
        for name in sorted(runtimes, key=lambda name: "torch" not in name)[:1]:  # other packages may bring one, too
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
