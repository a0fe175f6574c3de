"""The OpenMP runtime that the kernels find, in a process whose torch keeps it to itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from engine_core.kernels.provision import find_library

PROGRAM = """
import ctypes, sys
from engine_core.kernels.openmp import share_openmp

share_openmp()  # there is none
assert not hasattr(ctypes.CDLL(None), "GOMP_parallel")
ctypes.CDLL(sys.argv[1])
assert not hasattr(ctypes.CDLL(None), "GOMP_parallel")
share_openmp()
assert hasattr(ctypes.CDLL(None), "GOMP_parallel")
kernels = ctypes.CDLL(sys.argv[2])
assert kernels.ringline_source_digest
print(sum("gomp" in line and " r-xp " in line for line in open("/proc/self/maps")))
"""


def test_the_runtime_that_is_loaded_is_shared() -> None:
    package = Path(torch.__file__).parent
    (runtime,) = [*package.glob("lib/libgomp*"), *package.parent.glob("torch.libs/libgomp*")]
    command = [sys.executable, "-c", PROGRAM, str(runtime), str(find_library())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")
