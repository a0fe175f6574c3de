"""Ranks exchange tensors over torch's process groups: gloo between hosts without GPUs, NCCL between GPUs.

Groups are made from a store and used directly, without torch.distributed's global state: a process may have several
groups, and none is looked up by name.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store

from engine_core.distributed.collectives import StageLinks, TensorCollectives
from engine_core.errors import RankFailedError

_LOOK_SECONDS = 0.05
"""Interval at which a waiting rank checks for an abort."""
_abandoned: list[Group] = []
"""Groups aborted during an operation, kept alive because their destruction would wait for it."""


class _Work(Protocol):
    """An operation under way."""

    def wait(self, timeout: timedelta = ...) -> bool: ...
    def is_completed(self) -> bool: ...


class Group(Protocol):
    """The part of torch's ``Backend`` used here; torch's stubs lack most of it."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> _Work: ...
    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> _Work: ...
    def _allgather_base(self, output: torch.Tensor, x: torch.Tensor) -> _Work: ...


def gloo_group(store: Store, name: str, rank: int, size: int, host: str, timeout: float) -> Group:
    """Join as ``rank`` of ``size``; all ranks pass the same ``name``, and the others connect to address ``host``.

    No wait for another rank, here or later, exceeds ``timeout`` seconds. Raises ``RankFailedError``.
    """
    kind: Any = ProcessGroupGloo
    options = kind._Options()
    options._timeout, options._threads = timedelta(seconds=timeout), 1
    try:
        options._devices = [kind.create_device(hostname=host)]
        group: Group = kind(PrefixStore(name, store), rank, size, options)
    except RuntimeError as error:
        raise RankFailedError(
            f"rank {rank} of {size} ({name}) does not reach the others over {host}: {error}"
        ) from error
    return group


def nccl_group(store: Store, name: str, rank: int, size: int, timeout: float) -> Group:
    """Like ``gloo_group``, for GPUs: NCCL finds the route itself; a lost rank ends the process after ``timeout``.

    Operations are queued on the current stream, without waiting.
    """
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    group: Any = ProcessGroupNCCL(PrefixStore(name, store), rank, size, options)
    return group  # type: ignore[no-any-return]


class ProcessGroupLinks(StageLinks):
    """Links over a group whose ranks are the stages, in order."""

    def __init__(self, group: Group, device: torch.device) -> None:
        """``device`` receives the tensors."""
        self._group: Group | None = group
        self._device = device
        self._sent: deque[tuple[_Work, torch.Tensor]] = deque()
        """Tensors in transit: ``send`` need not wait for a next stage that still computes the step before."""

    def send(self, tensor: torch.Tensor) -> None:
        """Copies the tensor; waits only while 2 · (number of stages) sends are in transit."""
        group = self._open()
        # Tensors of the steps in flight may be in transit; the next stage receives them in order.
        while len(self._sent) >= 2 * group.size():
            work, _ = self._sent[0]
            _wait(work)
            self._sent.popleft()
        copy = tensor.clone(memory_format=torch.contiguous_format)
        try:
            self._sent.append((group.send([_bytes(copy)], group.rank() + 1, 0), copy))
        except RuntimeError as error:
            raise _failure(error) from error

    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        group, tensor = self._open(), torch.empty(*shape, dtype=dtype, device=self._device)
        try:
            work = group.recv([_bytes(tensor)], group.rank() - 1, 0)
        except RuntimeError as error:
            raise _failure(error) from error
        _wait(work)
        return tensor

    def close(self) -> None:
        self._group = None

    def _open(self) -> Group:
        if self._group is None:
            raise RankFailedError("this rank has left the other stages")
        return self._group


class ProcessGroupCollectives(TensorCollectives):
    """Collectives over a group. ``abort`` affects only this process; others fail as soon as it ends."""

    def __init__(self, group: Group, timeout: float) -> None:
        """``timeout``: seconds that a wait may take."""
        self.rank = group.rank()
        self.size = group.size()
        self._group: Group | None = group
        self._timeout = timeout
        self._aborted = threading.Event()

    def all_gather(
        self, x: torch.Tensor, widths: Sequence[int], *, groups: int = 1, writer: int | None = None
    ) -> torch.Tensor:
        rows, own, widest = len(x), widths[self.rank], max(widths)
        if x.shape != (rows, groups * own):
            raise ValueError(f"{tuple(x.shape)} is not {groups} rows of {own} each")
        part = x.reshape(rows, groups, own)
        if own < widest:
            part = torch.nn.functional.pad(part, (0, widest - own))
        gathered = self._gather(part)
        pieces = [piece[..., :width] for piece, width in zip(gathered, widths, strict=True)]
        return torch.cat(pieces, dim=-1).view(rows, -1)

    def gather_rows(
        self, x: torch.Tensor, ids: torch.Tensor, owned: Sequence[range], *, groups: int = 1
    ) -> torch.Tensor:
        # All rows are exchanged: the number that others need depends on the ids, for which a GPU step must not wait.
        owners = torch.zeros(len(ids), dtype=torch.int64, device=x.device)
        for rank, ours in enumerate(owned):
            owners.masked_fill_((ids >= ours.start) & (ids < ours.stop), rank)
        return self._gather(x)[owners, torch.arange(len(x), device=x.device)]

    def barrier(self) -> None:
        self._gather(torch.zeros(1, dtype=torch.uint8))

    def abort(self) -> None:
        self._aborted.set()

    def close(self) -> None:
        self.abort()
        self._group = None

    def _gather(self, x: torch.Tensor) -> torch.Tensor:
        """[size, …]: every rank's ``x`` […]; shapes are equal."""
        group = self._group
        if group is None or self._aborted.is_set():
            raise RankFailedError("this rank has left the others")
        gathered = x.new_empty(self.size, *x.shape)
        try:
            work = group._allgather_base(_bytes(gathered), _bytes(x.contiguous()))
        except RuntimeError as error:
            raise _failure(error) from error
        if x.is_cuda:
            _wait(work)
            return gathered
        deadline = time.monotonic() + self._timeout
        while not self._aborted.is_set():
            try:
                work.wait(timedelta(seconds=_LOOK_SECONDS))
                return gathered
            except RuntimeError as error:
                if work.is_completed():  # failed, or ended just after the wait
                    _wait(work)
                    return gathered
                if time.monotonic() > deadline:
                    raise _failure(error) from error
        _abandoned.append(group)
        raise RankFailedError("another rank has failed, so this one ends")


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """View as bytes, so that any dtype can be exchanged, whatever types the transport knows."""
    return x.view(-1).view(torch.uint8)


def _wait(work: _Work) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise _failure(error) from error


def _failure(error: RuntimeError) -> RankFailedError:
    return RankFailedError(f"another rank does not answer, or is gone: {error}")
