"""What waits for its time, found without a look at all else that waits."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")

_SLACK = 64
"""Times of items that are gone may be so many, and as many again as there are items, before they are swept out."""


class DeadlineQueue(Generic[T]):
    """Items by key, each with the time at which it is due. Times are seconds on the owner's clock."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[float, T]] = {}
        self._times: list[tuple[float, str]] = []
        """A heap; an entry says nothing if its item has another time by now, or is gone."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def items(self) -> list[T]:
        """All, due or not."""
        return [item for _, item in self._items.values()]

    def put(self, key: str, item: T, due: float) -> None:
        """Have an item wait, until another time if it waits already."""
        self._items[key] = due, item
        heapq.heappush(self._times, (due, key))
        if len(self._times) > 2 * len(self._items) + _SLACK:
            self._times = [(due, key) for key, (due, _) in self._items.items()]
            heapq.heapify(self._times)

    def discard(self, key: str) -> None:
        """An item waits no longer, if it did."""
        self._items.pop(key, None)

    def due(self, now: float) -> list[T]:
        """Those that are due. Each is told once: it has to be put again, or discarded."""
        found: dict[str, T] = {}
        while self._times and self._times[0][0] <= now:
            time, key = heapq.heappop(self._times)
            due, item = self._items.get(key, (None, None))
            if due == time and item is not None:
                found[key] = item
        return list(found.values())
