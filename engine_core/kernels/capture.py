"""Calls of native kernels, captured once so that they can be made again all together: what a CUDA graph is to a GPU.

While a thread captures, kernels that it calls are noted instead of run, and what they would put out gets memory of its
own that stays where it is. ``Captured.replay`` then runs them in order, on other rows and other sequences, with one
call and without the interpreter between them.
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
    """Something other than native kernels computes in between; the text names it."""


class BufferPool:
    """Memory for what kernels put out, for so many rows; it is used anew once the last tensor on it is gone."""

    def __init__(self, max_rows: int) -> None:
        """Of each tensor that is taken, there will be up to ``max_rows`` rows."""
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
    """Calls in order. Whoever captures keeps what they read alive; what they write is in the pool."""

    def __init__(self, pool: BufferPool, replay: Callable[..., int]) -> None:
        """``replay`` is the library's."""
        self.pool = pool
        self._replay = replay
        self._operations: list[Operation] = []
        self._arguments: list[ctypes.Structure] = []
        self._table: ctypes.Array[Operation] | None = None

    def add(self, kind: OperationKind, kernels: int, arguments: Sequence[ctypes.Structure]) -> None:
        """Note a call of a kernel out of the table at the address ``kernels``."""
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
    """Forbids what torch would compute: it would not be computed again."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Of torch's: else it loads its compiler with the first dispatch, to turn it off, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            raise NotCapturableError(f"torch computes {func}")
        return func(*args, **(kwargs or {}))


@contextmanager
def capturing(captured: Captured) -> Iterator[None]:
    """Note this thread's calls of native kernels. Raises ``NotCapturableError`` where torch computes something, too."""
    _state.captured = captured
    try:
        with _ViewsOnly():  # type: ignore[no-untyped-call]
            yield
    finally:
        _state.captured = None


def empty(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor [rows, width] for what a kernel puts out, with unspecified contents."""
    captured: Captured | None = getattr(_state, "captured", None)
    return torch.empty(rows, width, dtype=dtype) if captured is None else captured.pool.take(rows, width, dtype)


def capturable(kind: OperationKind, kernels: int, function: Callable[..., int]) -> Callable[..., int]:
    """``function`` out of the table at the address ``kernels``; while its caller captures, the call is only noted."""

    def call(*arguments: ctypes.Structure) -> int:
        captured: Captured | None = getattr(_state, "captured", None)
        if captured is None:
            return function(*arguments)
        captured.add(kind, kernels, arguments)
        return 0

    return call
