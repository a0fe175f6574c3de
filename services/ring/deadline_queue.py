"""A queue of items by due time; finding the due ones does not scan the others."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")

_SLACK = 64
"""The heap is rebuilt when it has more stale entries than this plus the number of items."""


class DeadlineQueue(Generic[T]):
    """Items by key, each with a due time. Times are seconds on the owner's clock."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[float, T]] = {}
        self._times: list[tuple[float, str]] = []
        """A heap of (due time, key); an entry is stale if its item is gone or has another due time."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def items(self) -> list[T]:
        """All items, due or not."""
        return [item for _, item in self._items.values()]

    def put(self, key: str, item: T, due: float) -> None:
        """Add an item, or change its due time."""
        self._items[key] = due, item
        heapq.heappush(self._times, (due, key))
        if len(self._times) > 2 * len(self._items) + _SLACK:
            self._times = [(due, key) for key, (due, _) in self._items.items()]
            heapq.heapify(self._times)

    def discard(self, key: str) -> None:
        self._items.pop(key, None)

    def due(self, now: float) -> list[T]:
        """The items that are due. Each is returned once: the caller puts it again, or discards it."""
        found: dict[str, T] = {}
        while self._times and self._times[0][0] <= now:
            time, key = heapq.heappop(self._times)
            due, item = self._items.get(key, (None, None))
            if due == time and item is not None:
                found[key] = item
        return list(found.values())
