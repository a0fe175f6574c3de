"""Ranks of one host gather through shared memory, by native kernels, so that captured steps include their gathers.

Each rank copies its part to where all others read it, and waits for them (gather.h and barrier.h in
kernels/cpu/threads). The result is that shared memory itself: a slot, which must not be written again while any rank
may still read it. So:

- Only kernels write to it. Results are mapped read-only, except those that a rank is to change (``writer``), which no
  other rank reads then.
- In every call each rank tells the others which slots its tensors hold. A slot is free once no rank has named it in the
  last call: all ranks have got there, and read it no more. As all know the same, they choose the same slot without
  further messages, however long one of them keeps a tensor. Every call checks that they do.
- Captured calls have their own slots, since a replay writes to them whatever tensors are alive. They exchange no slots:
  captures are the same on all ranks. The first call of a capture is a barrier, after which no rank reads the results
  of the replay before.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from engine_core.distributed.collectives import TensorCollectives
from engine_core.distributed.shared_region import REGION_BYTES, SharedRegion, share_region
from engine_core.errors import RankFailedError
from engine_core.kernels.arguments import structures
from engine_core.kernels.capture import Kernel, check, current_capture
from engine_core.kernels.library import Kernels
from engine_core.kernels.memory import take_now

_CACHE_LINE = 64
_LEAST_CAPACITY = 1 << 20
_MOST_SLOTS = 256
"""Number of bits in ``RinglineBarrier.held``."""


class _Unwritable:
    """Read-only memory presented as writable to numpy and torch, which would warn for each tensor."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._bytes = np.frombuffer(memory, np.uint8)
        place, shape = (self._bytes.ctypes.data, False), self._bytes.shape
        self.__array_interface__ = {"data": place, "shape": shape, "typestr": "|u1", "version": 3}


class _Memory:
    """The shared memory, handed out from beginning to end and never taken back; ``_Slots`` reuse it."""

    def __init__(self, region: SharedRegion, size: int) -> None:
        """Reserves the beginning for the barriers of ``size`` ranks."""
        self.bytes = np.frombuffer(region.memory, np.uint8)
        self.to_read = np.asarray(_Unwritable(region.to_read))
        """The same bytes, mapped read-only: a write ends the process."""
        self.address: int = self.bytes.ctypes.data
        self.ranks = structures()["RinglineRanks"].from_buffer(region.memory)
        self._next = -(-(1 + 2 * size) * _CACHE_LINE // mmap.PAGESIZE) * mmap.PAGESIZE

    def reserve(self, size: int) -> int:
        """Reserve ``size`` bytes; returns their offset. Raises ``MemoryError``."""
        place = self._next
        if place + size > REGION_BYTES - mmap.PAGESIZE:  # kernels may read a vector past the end
            raise MemoryError(f"results that ranks share take more than {REGION_BYTES >> 30} GiB")
        self._next += size
        return place


@dataclass(slots=True)
class _Slot:
    """Memory for one tensor at a time."""

    number: int
    place: int
    capacity: int
    taken: int = 0
    """Bytes whose pages are allocated."""


class _Slots:
    """Slots of captured calls, or of all other calls. Sets of slots are bit masks."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._held = set[int]()
        self._foreign = 0
        self._busy = 0

    @property
    def held(self) -> int:
        """The slots held by tensors of this rank."""
        return sum(1 << number for number in tuple(self._held))

    def met(self, held_by_any: int) -> None:
        """Note that all ranks have met; ``held_by_any``: slots held by at least one of them."""
        self._busy = self._foreign = held_by_any

    def met_in_capture(self) -> None:
        """Note that all ranks capture a meeting. During a capture they take and release the same slots."""
        self._busy = self._foreign | self.held

    def take(
        self, memory: _Memory, rows: int, width: int, dtype: torch.dtype, *, writable: bool
    ) -> tuple[int, torch.Tensor]:
        """The offset of a tensor [rows, width] with unspecified contents, and the tensor. Raises ``MemoryError``."""
        size = rows * width * dtype.itemsize
        fitting = [slot for slot in self._slots if slot.capacity >= size and not self._busy >> slot.number & 1]
        slot = min(fitting, key=lambda each: each.capacity) if fitting else self._new(memory, size)
        if size > slot.taken:
            _take_pages(memory, slot, size)
        self._busy |= 1 << slot.number
        self._held.add(slot.number)
        mapped = memory.bytes if writable else memory.to_read
        handle = mapped[slot.place : slot.place + size]  # lives as long as any tensor on the memory
        weakref.finalize(handle, self._held.discard, slot.number).atexit = False
        return slot.place, torch.from_numpy(handle).view(dtype).view(rows, width)

    def _new(self, memory: _Memory, size: int) -> _Slot:
        if len(self._slots) == _MOST_SLOTS:
            raise MemoryError(f"more than {_MOST_SLOTS} results that ranks share are in use")
        # Powers of two, so that steps of growing size do not keep leaving slots too small for the next one.
        capacity = max(_LEAST_CAPACITY, 1 << (size - 1).bit_length())
        self._slots.append(_Slot(len(self._slots), memory.reserve(capacity), capacity))
        return self._slots[-1]


def _take_pages(memory: _Memory, slot: _Slot, size: int) -> None:
    """Allocate pages now, so that a lack of memory is an error: later it would be a fatal signal."""
    end = slot.place + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        take_now(torch.from_numpy(memory.bytes[slot.place : end]))
    except RuntimeError as error:
        raise MemoryError(f"results that ranks share: {error}") from error
    slot.taken = size


class ShmCollectives(TensorCollectives):
    """Collectives of ranks that share memory: processes of a host, or threads with one object each."""

    @classmethod
    def join(cls, key: str, rank: int, size: int, timeout: float, kernels: Kernels) -> Self:
        """Join as ``rank`` of ``size``; all ranks use the same random ``key``, and join within ``timeout`` seconds.

        Raises ``RankFailedError``, ``MemoryError``.
        """
        return cls(share_region(key, rank, size, timeout), rank, size, kernels)

    def __init__(self, region: SharedRegion, rank: int, size: int, kernels: Kernels) -> None:
        """``region``: from ``share_region``."""
        self.rank = rank
        self.size = size
        self._kernels = kernels
        self._memory: _Memory | None = _Memory(region, size)
        self._slots, self._captured_slots = _Slots(), _Slots()

    def all_gather(
        self, x: torch.Tensor, widths: Sequence[int], *, groups: int = 1, writer: int | None = None
    ) -> torch.Tensor:
        rows, own, total = len(x), widths[self.rank], sum(widths)
        if x.shape != (rows, groups * own):
            raise ValueError(f"{tuple(x.shape)} is not {groups} rows of {own} each")
        x = x if x.stride(1) == 1 else x.contiguous()
        item = x.itemsize
        gathered = self._gather(
            x,
            None,
            (rows, groups, total),
            layout=(groups, *widths),
            writable=writer == self.rank,
            column=sum(widths[: self.rank]),
            row_bytes=own * item,
            x_stride=x.stride(0) * item,
            x_group_stride=own * item,
        )
        return gathered.view(rows, groups * total)

    def gather_rows(
        self, x: torch.Tensor, ids: torch.Tensor, owned: Sequence[range], *, groups: int = 1
    ) -> torch.Tensor:
        count, width = x.shape
        if ids.shape != (count,) or ids.dtype != torch.int32 or not ids.is_contiguous():
            raise ValueError(f"ids must be [{count}] int32, dense, not {tuple(ids.shape)} {ids.dtype}")
        x = x if x.stride(1) == 1 else x.contiguous()
        stride = x.stride(0) * x.itemsize
        return self._gather(
            x,
            ids,
            (count // groups, groups, width),
            layout=(groups, *((each.start, each.stop) for each in owned)),
            first_id=owned[self.rank].start,
            end_id=owned[self.rank].stop,
            row_bytes=width * x.itemsize,
            x_stride=groups * stride,
            x_group_stride=stride,
        )

    def barrier(self) -> None:
        self._meet(self._kernels.barrier, self._kernels.barrier.arguments(), self._open())

    def abort(self) -> None:
        memory = self._memory
        if memory is not None:
            memory.ranks.aborted = 1

    def close(self) -> None:
        """Other ranks' calls raise from now on. Memory lives as long as tensors on it and captured calls."""
        self.abort()
        self._memory = None

    def _open(self) -> _Memory:
        if self._memory is None:
            raise RankFailedError("this rank has left the others")
        return self._memory

    def _gather(
        self,
        x: torch.Tensor,
        ids: torch.Tensor | None,
        shape: tuple[int, int, int],
        *,
        layout: tuple[object, ...],
        writable: bool = False,
        column: int = 0,
        **fields: int,
    ) -> torch.Tensor:
        """[rows · groups, width]; ``shape``: (rows, groups, width). This rank's columns begin at ``column``."""
        memory, captured, kernel = self._open(), current_capture(), self._kernels.gather
        (rows, groups, width), room = shape, shape[0]
        if captured is not None:
            if captured.keep(memory):
                self._begin_capture(memory)
            room = captured.pool.max_rows
        slots = self._slots if captured is None else self._captured_slots
        place, output = slots.take(memory, room * groups, width, x.dtype, writable=writable)
        arguments = kernel.arguments(
            x=x.data_ptr(),
            ids=None if ids is None else ids.data_ptr(),
            output=memory.address + place + column * x.itemsize,
            rows=rows,
            groups=groups,
            output_stride=width * x.itemsize,
            place=place,
            layout=zlib.crc32(repr(layout).encode()),
            num_threads=torch.get_num_threads(),
            **fields,
        )
        self._meet(kernel, arguments, memory)
        return output[: rows * groups]

    def _begin_capture(self, memory: _Memory) -> None:
        """Learn which slots are in use, and begin each replay with a barrier."""
        kernel = self._kernels.barrier
        self._call(kernel.function, kernel.arguments(), memory, self._captured_slots)
        self._meet(kernel, kernel.arguments(), memory)

    def _meet(self, kernel: Kernel, arguments: Any, memory: _Memory) -> None:
        """Call ``kernel``, or capture the call."""
        if current_capture() is None:
            self._call(kernel, arguments, memory, self._slots)
        else:
            arguments.ranks, arguments.rank, arguments.size = memory.address, self.rank, self.size
            kernel(arguments)
            self._captured_slots.met_in_capture()

    def _call(self, call: Callable[[Any], int], arguments: Any, memory: _Memory, slots: _Slots) -> None:
        """Exchange with the other ranks which of ``slots`` are held."""
        held = ctypes.create_string_buffer(slots.held.to_bytes(_MOST_SLOTS // 8, "little"), _MOST_SLOTS // 8)
        arguments.ranks, arguments.rank, arguments.size = memory.address, self.rank, self.size
        arguments.held = ctypes.addressof(held)
        check(call(arguments))
        slots.met(int.from_bytes(held.raw, "little"))
