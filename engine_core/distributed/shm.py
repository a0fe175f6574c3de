"""Ranks of one host gather through memory that they share, by native kernels: a captured step holds its gathers, too.

Each rank copies what it has to where all others read it, and waits for them (kernels/cpu/gather.h, barrier.h). The
result is that shared memory itself. It must not be written again while another rank may still read it, so:

- All ranks make the same calls in the same order, and let go of tensors at the same places. So they choose the same
  memory, without a word to each other; that they do is checked in every call.
- Memory is used again only after a barrier that follows the end of the last tensor on it: every rank has got there,
  and reads it no more.
- Captured calls have memory that only captures use, since a replay writes to it whatever else is alive. The first of
  them in a capture is a barrier: after it no rank reads what the replay before left.
"""

from __future__ import annotations

import mmap
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from engine_core.distributed.collectives import RankFailedError, TensorCollectives
from engine_core.distributed.shared_region import REGION_BYTES, share_region
from engine_core.kernels.arguments import structures
from engine_core.kernels.capture import check, current_capture
from engine_core.kernels.library import Kernels
from engine_core.kernels.memory import take_now

_CACHE_LINE = 64
_LEAST_SLOT = 1 << 16


class _Memory:
    """The shared memory, handed out from its beginning to its end and never taken back; that is for ``_Slots``."""

    def __init__(self, region: mmap.mmap, size: int) -> None:
        """The beginning is for the barriers of ``size`` ranks."""
        self.bytes = np.frombuffer(region, np.uint8)
        self.address: int = self.bytes.ctypes.data
        self.ranks = structures()["RinglineRanks"].from_buffer(region)
        self._next = -(-(1 + size) * _CACHE_LINE // mmap.PAGESIZE) * mmap.PAGESIZE

    def reserve(self, size: int) -> int:
        """Where ``size`` bytes begin. Raises ``MemoryError``."""
        place = self._next
        if place + size > REGION_BYTES - mmap.PAGESIZE:  # kernels may read a vector past the end
            raise MemoryError(f"results that ranks share take more than {REGION_BYTES >> 30} GiB")
        self._next += size
        return place


@dataclass(slots=True)
class _Slot:
    """Memory for one tensor at a time."""

    place: int
    capacity: int
    taken: int = 0
    """Bytes that the system has given."""
    last_used: int = -1
    """How many barriers there had been when its last tensor ended."""


class _Slots:
    """Slots for tensors: those of captured calls, or all others."""

    def __init__(self) -> None:
        self._free: list[_Slot] = []
        self.barriers = 0

    def take(self, memory: _Memory, rows: int, width: int, dtype: torch.dtype) -> tuple[int, torch.Tensor]:
        """A tensor [rows, width] with unspecified contents, and where it is. Raises ``MemoryError``."""
        size = rows * width * dtype.itemsize
        fitting = [slot for slot in self._free if slot.capacity >= size and slot.last_used < self.barriers]
        if fitting:
            slot = min(fitting, key=lambda free: (free.capacity, free.place))
            self._free.remove(slot)
        else:
            # Powers of two, so that steps of ever more rows do not leave ever more slots too small for the next one.
            capacity = max(_LEAST_SLOT, 1 << (size - 1).bit_length())
            slot = _Slot(memory.reserve(capacity), capacity)
        if size > slot.taken:
            _take_pages(memory, slot, size)
        handle = memory.bytes[slot.place : slot.place + size]  # lives as long as any tensor on the memory
        weakref.finalize(handle, self._free_again, slot).atexit = False
        return slot.place, torch.from_numpy(handle).view(dtype).view(rows, width)

    def _free_again(self, slot: _Slot) -> None:
        slot.last_used = self.barriers
        self._free.append(slot)


def _take_pages(memory: _Memory, slot: _Slot, size: int) -> None:
    """Now, so that a lack of memory is an error: later it would be a signal that ends the process."""
    end = slot.place + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        take_now(torch.from_numpy(memory.bytes[slot.place : end]))
    except RuntimeError as error:
        raise MemoryError(f"results that ranks share: {error}") from error
    slot.taken = size


class ShmCollectives(TensorCollectives):
    """Ranks that share memory: processes of a host, or threads with an object of this class each."""

    @classmethod
    def join(cls, key: str, rank: int, size: int, timeout: float, kernels: Kernels) -> Self:
        """Be ``rank`` of ``size``, all of which join with the same random ``key`` within ``timeout`` seconds.

        Raises ``RankFailedError``, ``MemoryError``.
        """
        return cls(share_region(key, rank, size, timeout), rank, size, kernels)

    def __init__(self, region: mmap.mmap, rank: int, size: int, kernels: Kernels) -> None:
        """``region``: what ``share_region`` returns."""
        self.rank = rank
        self.size = size
        self._kernels = kernels
        self._memory: _Memory | None = _Memory(region, size)
        self._slots, self._captured_slots = _Slots(), _Slots()

    def all_gather(self, x: torch.Tensor, widths: Sequence[int], *, groups: int = 1) -> torch.Tensor:
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
        self._meet(self._open())

    def abort(self) -> None:
        memory = self._memory
        if memory is not None:
            memory.ranks.aborted = 1

    def close(self) -> None:
        """Memory ends with the last tensor on it, and the last captured call. Other ranks' calls raise from now on."""
        self.abort()
        self._memory = None

    def _open(self) -> _Memory:
        if self._memory is None:
            raise RankFailedError("this rank has left the others")
        return self._memory

    def _meet(self, memory: _Memory) -> None:
        kernel = self._kernels.barrier
        arguments = kernel.arguments(ranks=memory.address, rank=self.rank, size=self.size)
        check(kernel(arguments))
        self._count()

    def _count(self) -> None:
        slots = self._slots if current_capture() is None else self._captured_slots
        slots.barriers += 1

    def _gather(
        self,
        x: torch.Tensor,
        ids: torch.Tensor | None,
        shape: tuple[int, int, int],
        *,
        layout: tuple[object, ...],
        column: int = 0,
        **fields: int,
    ) -> torch.Tensor:
        """[rows · groups, width] for ``shape``; this rank's columns begin at ``column``."""
        memory, captured = self._open(), current_capture()
        (rows, groups, width), room = shape, shape[0]
        if captured is not None:
            if captured.keep(memory):
                self._meet(memory)
            room = captured.pool.max_rows
        slots = self._slots if captured is None else self._captured_slots
        place, output = slots.take(memory, room * groups, width, x.dtype)
        result = self._kernels.gather.run(
            ranks=memory.address,
            x=x,
            ids=ids,
            output=output.data_ptr() + column * x.itemsize,
            rows=rows,
            groups=groups,
            output_stride=width * x.itemsize,
            place=place,
            layout=zlib.crc32(repr(layout).encode()),
            rank=self.rank,
            size=self.size,
            **fields,
        )
        check(result)
        self._count()
        return output[: rows * groups]
