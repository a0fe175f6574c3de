"""Calls of native kernels, captured once and replayed all together, as a CUDA graph does on a GPU.

While a thread captures, its kernel calls are recorded instead of run, and their outputs get memory of their own at
fixed addresses. ``Captured.replay`` then makes the calls in order, for other rows and other sequences, in one go and
without the interpreter in between.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine_core.kernels.arguments import Operation, OperationKind, Step
from engine_core.kernels.memory import streaming_bytes

_state = threading.local()


class NotCapturableError(Exception):
    """Something other than native kernels computes during a capture; the text names it."""


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
        """``replay`` is ``CpuKernels.replay``."""
        self.pool = pool
        self._replay = replay
        self._operations: list[Operation] = []
        self._arguments: list[ctypes.Structure] = []
        self._table: ctypes.Array[Operation] | None = None

    def add(self, kind: OperationKind, kernels: int, arguments: Sequence[ctypes.Structure]) -> None:
        """Record a call of a kernel from the table at the address ``kernels``."""
        kept = [type(argument).from_buffer_copy(argument) for argument in arguments]
        self._arguments += kept
        self._operations.append(Operation(kind, kernels, *map(ctypes.addressof, kept)))

    def replay(self, step: Step) -> None:
        """Make the calls for ``step``. Raises ``MemoryError``."""
        if self._table is None:
            self._table = (Operation * len(self._operations))(*self._operations)
        if self._replay(self._table, len(self._operations), ctypes.byref(step)) != 0:
            raise MemoryError("no memory for the intermediate results of a step")


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


def empty(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor [rows, width] for a kernel's output, with unspecified contents."""
    captured: Captured | None = getattr(_state, "captured", None)
    pool: BufferPool | None = getattr(_state, "pool", None) if captured is None else captured.pool
    if pool is None or (captured is None and rows > pool.max_rows):
        return torch.empty(rows, width, dtype=dtype)
    return pool.take(rows, width, dtype)


def capturable(kind: OperationKind, kernels: int, function: Callable[..., int]) -> Callable[..., int]:
    """``function`` from the table at the address ``kernels``; while its caller captures, a call is only recorded."""

    def call(*arguments: ctypes.Structure) -> int:
        captured: Captured | None = getattr(_state, "captured", None)
        if captured is None:
            return function(*arguments)
        captured.add(kind, kernels, arguments)
        return 0

    return call
