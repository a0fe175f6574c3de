"""Calls of native kernels, captured once and replayed together, like a CUDA graph.

While a thread captures, its kernel calls are recorded instead of run, and their outputs get memory at fixed addresses.
``Captured.replay`` then makes the calls in order, for other rows and sequences, without the interpreter in between.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine_core.errors import RankFailedError
from engine_core.kernels.arguments import DONE, NO_MEMORY, RANK_FAILED, structures
from engine_core.kernels.memory import streaming_bytes

_state = threading.local()


class NotCapturableError(Exception):
    """Something other than native kernels computes during a capture; the text names it."""


def check(result: int) -> None:
    """Raise ``MemoryError`` or ``RankFailedError`` for a kernel's ``RinglineResult``, unless it is DONE."""
    if result == NO_MEMORY:
        raise MemoryError("no memory for the intermediate results of a step")
    if result == RANK_FAILED:
        raise RankFailedError("another rank of the engine has failed or is gone")
    if result != DONE:
        raise RankFailedError("the ranks of the engine do not make the same calls: a defect of the engine")


class BufferPool:
    """Buffers for outputs of kernels, each reused once the last tensor on it is freed."""

    def __init__(self, max_rows: int) -> None:
        """Every tensor has room for ``max_rows`` rows."""
        self.max_rows = max_rows
        self._buffers: list[npt.NDArray[np.uint8]] = []
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """The first ``rows`` of an uninitialized tensor [max_rows, width]."""
        size = self.max_rows * width * dtype.itemsize
        buffer = next((free for free in self._free if len(free) == size), None)
        if buffer is None:
            buffer = streaming_bytes(size)
            self._buffers.append(buffer)
        else:
            self._free = [free for free in self._free if free is not buffer]
        handle = buffer[:]  # lives as long as any tensor on the buffer
        weakref.finalize(handle, self._free_again, buffer).atexit = False
        return torch.from_numpy(handle).view(dtype).view(self.max_rows, width)[:rows]

    def _free_again(self, buffer: npt.NDArray[np.uint8]) -> None:
        self._free.append(buffer)


class Captured:
    """Recorded calls, in order. The capturing code keeps alive what they read; what they write is in the pool."""

    def __init__(self, pool: BufferPool, replay: Callable[..., int]) -> None:
        """``replay`` is ``Kernels.replay``."""
        self.pool = pool
        self._replay = replay
        self._operations: list[ctypes.Structure] = []
        self._arguments: list[ctypes.Structure] = []
        self._kept: list[object] = []
        self._table: ctypes.Array[ctypes.Structure] | None = None

    def add(self, kernel: Kernel, arguments: ctypes.Structure) -> None:
        """Record a call."""
        kept = type(arguments).from_buffer_copy(arguments)
        self._arguments.append(kept)
        operation = structures()["RinglineOperation"]
        self._operations.append(operation(kernel.kind, kernel.address, ctypes.addressof(kept)))

    def keep(self, memory: object) -> bool:
        """Keep ``memory``, which calls use, alive as long as they can be replayed. False if already kept."""
        if any(kept is memory for kept in self._kept):
            return False
        self._kept.append(memory)
        return True

    def replay(self, **step: int | None) -> None:
        """Make the calls for a ``RinglineStep`` with these fields. Raises ``MemoryError``, ``RankFailedError``."""
        count = len(self._operations)
        if self._table is None:
            self._table = (structures()["RinglineOperation"] * count)(*self._operations)
        check(self._replay(self._table, count, ctypes.byref(structures()["RinglineStep"](**step))))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A native kernel. Releases the GIL; while its caller captures, calls are only recorded."""

    kind: int
    """Its index in the concatenated lists of cpu/interface.h."""
    address: int
    function: Callable[[ctypes.Structure], int]
    arguments: type[ctypes.Structure]

    def __call__(self, arguments: ctypes.Structure) -> int:
        """Returns a ``RinglineResult`` for ``check``; 0: done."""
        captured = current_capture()
        if captured is None:
            return self.function(arguments)
        captured.add(self, arguments)
        return 0

    def run(self, **fields: torch.Tensor | float | None) -> int:
        """Call it with these arguments, tensors as addresses, on torch's number of threads."""
        values = {name: each.data_ptr() if isinstance(each, torch.Tensor) else each for name, each in fields.items()}
        return self(self.arguments(num_threads=torch.get_num_threads(), **values))


class _ViewsOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps torch from computing anything: a replay would not repeat it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """A hook of torch, without which the first dispatch spends seconds on loading its compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            raise NotCapturableError(f"torch computes {func}")
        return func(*args, **(kwargs or {}))


def current_capture() -> Captured | None:
    """The capture of this thread, if any."""
    captured: Captured | None = getattr(_state, "captured", None)
    return captured


@contextmanager
def capturing(captured: Captured) -> Iterator[None]:
    """Record this thread's calls of native kernels. Raises ``NotCapturableError`` if torch computes, too."""
    _state.captured = captured
    try:
        with _ViewsOnly():  # type: ignore[no-untyped-call]
            yield
    finally:
        _state.captured = None


@contextmanager
def outputs_in(pool: BufferPool) -> Iterator[None]:
    """Let this thread's kernels write their outputs to buffers of ``pool``, if it has enough rows."""
    _state.pool = pool
    try:
        yield
    finally:
        _state.pool = None


def kernel_output(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized tensor [rows, width] for a kernel's output."""
    captured = current_capture()
    pool: BufferPool | None = getattr(_state, "pool", None) if captured is None else captured.pool
    if pool is None or (captured is None and rows > pool.max_rows):
        return torch.empty(rows, width, dtype=dtype)
    return pool.take(rows, width, dtype)
