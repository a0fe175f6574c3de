"""Calls of native kernels, captured once and replayed all together, as a CUDA graph does on a GPU.

While a thread captures, its kernel calls are recorded instead of run, and their outputs get memory of their own at
fixed addresses. ``Captured.replay`` then makes the calls in order, for other rows and other sequences, in one go and
without the interpreter in between.
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
    """Raises ``MemoryError`` or ``RankFailedError`` for the ``RinglineResult`` of a kernel, unless it is done."""
    if result == NO_MEMORY:
        raise MemoryError("no memory for the intermediate results of a step")
    if result == RANK_FAILED:
        raise RankFailedError("another rank of the engine has failed or is gone")
    if result != DONE:
        raise RankFailedError("the ranks of the engine do not make the same calls: a defect of the engine")


class BufferPool:
    """Buffers for the output of kernels; one is reused once the last tensor on it is gone."""

    def __init__(self, max_rows: int) -> None:
        """Every tensor taken can grow to ``max_rows`` rows."""
        self.max_rows = max_rows
        self._buffers: list[npt.NDArray[np.uint8]] = []
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """The first ``rows`` of a tensor [max_rows, width] with unspecified contents."""
        size = self.max_rows * width * dtype.itemsize
        buffer = next((free for free in self._free if len(free) == size), None)
        if buffer is None:
            buffer = streaming_bytes(size)
            self._buffers.append(buffer)
        else:
            self._free = [free for free in self._free if free is not buffer]
        handle = buffer[:]  # lives as long as any tensor on the memory
        weakref.finalize(handle, self._free_again, buffer).atexit = False
        return torch.from_numpy(handle).view(dtype).view(self.max_rows, width)[:rows]

    def _free_again(self, buffer: npt.NDArray[np.uint8]) -> None:
        self._free.append(buffer)


class Captured:
    """Recorded calls, in order. Whoever captures keeps alive what they read; what they write is in the pool."""

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
        """Keep ``memory`` alive, which calls use, as long as they can be replayed. False if it is kept already."""
        if any(kept is memory for kept in self._kept):
            return False
        self._kept.append(memory)
        return True

    def replay(self, **step: int | None) -> None:
        """Make the calls for the ``RinglineStep`` of these fields. Raises ``MemoryError``, ``RankFailedError``."""
        count = len(self._operations)
        if self._table is None:
            self._table = (structures()["RinglineOperation"] * count)(*self._operations)
        check(self._replay(self._table, count, ctypes.byref(structures()["RinglineStep"](**step))))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A native kernel. It releases the interpreter's lock; while its caller captures, a call is only recorded."""

    kind: int
    """Its place in the lists of cpu/interface.h, one after the other."""
    address: int
    function: Callable[[ctypes.Structure], int]
    arguments: type[ctypes.Structure]
    """What it takes."""

    def __call__(self, arguments: ctypes.Structure) -> int:
        """A ``RinglineResult``: 0, or what ``check`` raises."""
        captured = current_capture()
        if captured is None:
            return self.function(arguments)
        captured.add(self, arguments)
        return 0

    def run(self, **fields: torch.Tensor | float | None) -> int:
        """Call it with these arguments, tensors by their addresses, on as many threads as torch has."""
        values = {name: each.data_ptr() if isinstance(each, torch.Tensor) else each for name, each in fields.items()}
        return self(self.arguments(num_threads=torch.get_num_threads(), **values))


class _ViewsOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps torch from computing anything: a replay would not repeat it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """A hook of torch, which otherwise spends seconds at the first dispatch on loading its compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            raise NotCapturableError(f"torch computes {func}")
        return func(*args, **(kwargs or {}))


def current_capture() -> Captured | None:
    """What this thread captures."""
    captured: Captured | None = getattr(_state, "captured", None)
    return captured


@contextmanager
def capturing(captured: Captured) -> Iterator[None]:
    """Record this thread's calls of native kernels. Raises ``NotCapturableError`` where torch computes, too."""
    _state.captured = captured
    try:
        with _ViewsOnly():  # type: ignore[no-untyped-call]
            yield
    finally:
        _state.captured = None


@contextmanager
def outputs_in(pool: BufferPool) -> Iterator[None]:
    """Let this thread's kernels write what they put out to buffers of ``pool``, where it has enough rows."""
    _state.pool = pool
    try:
        yield
    finally:
        _state.pool = None


def kernel_output(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor [rows, width] for a kernel's output, with unspecified contents."""
    captured = current_capture()
    pool: BufferPool | None = getattr(_state, "pool", None) if captured is None else captured.pool
    if pool is None or (captured is None and rows > pool.max_rows):
        return torch.empty(rows, width, dtype=dtype)
    return pool.take(rows, width, dtype)
