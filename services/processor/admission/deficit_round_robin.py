"""Deficit round-robin between tenants over bytes to tokenize (Shreedhar and Varghese, SIGCOMM 1995).

A tenant's work waits only for its own earlier work, whatever other tenants send. This orders only tokenization: an
engine has its own queue, with deficit round-robin over tokens (``engine_core.scheduling.request_queue``).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Work with a size."""

    @property
    def size(self) -> int:
        """Size in bytes."""


_T = TypeVar("_T", bound=Sized)


class _Queue(Generic[_T]):
    __slots__ = ("credit", "work")

    def __init__(self, credit: int) -> None:
        self.work: OrderedDict[str, _T] = OrderedDict()
        self.credit = credit
        """Bytes that the tenant may still take in its turn."""


class DeficitRoundRobin(Generic[_T]):
    """Queues of work per tenant. A tenant without work takes no memory here."""

    def __init__(self, quantum: int) -> None:
        """``quantum``: bytes per tenant and turn."""
        self._quantum = quantum
        self._queues: OrderedDict[str, _Queue[_T]] = OrderedDict()
        """Queues keyed by tenant, none empty; the first one has its turn."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def append(self, tenant: str, key: str, work: _T) -> None:
        if (queue := self._queues.get(tenant)) is None:
            queue = self._queues[tenant] = _Queue(self._quantum)
        queue.work[key] = work

    def remove(self, tenant: str, key: str) -> _T | None:
        """Remove and return the work with a key; None if there is none."""
        if (queue := self._queues.get(tenant)) is None or (work := queue.work.pop(key, None)) is None:
            return None
        if not queue.work:
            del self._queues[tenant]
        return work

    def clear(self) -> None:
        self._queues.clear()

    def take(self) -> list[_T]:
        """Take the next work, up to one quantum in total; a larger item comes alone."""
        taken: list[_T] = []
        size = 0
        while self._queues:
            tenant, queue = next(iter(self._queues.items()))
            next_size = next(iter(queue.work.values())).size
            if next_size > queue.credit:
                queue.credit += self._quantum
                self._queues.move_to_end(tenant)
                continue
            if taken and size + next_size > self._quantum:
                break
            _, work = queue.work.popitem(last=False)
            taken.append(work)
            size += next_size
            queue.credit -= next_size
            if not queue.work:
                del self._queues[tenant]
        return taken
