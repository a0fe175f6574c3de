"""Deadlines of live requests, soonest first, so that a step looks only at those that have passed."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from engine_core.scheduling.sequence import SequenceGroup


class DeadlineHeap:
    """A heap from which ended groups are dropped when they surface, or when they outnumber the live ones."""

    __slots__ = ("_heap", "_num_live", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SequenceGroup]] = []
        self._num_live = 0
        self._serial = count()

    def add(self, group: SequenceGroup) -> None:
        """Watch a group's deadline, if it has one."""
        if group.request.deadline is not None:
            heappush(self._heap, (group.request.deadline, next(self._serial), group))
            self._num_live += 1

    def discard(self, group: SequenceGroup) -> None:
        """Stop watching a group, which is marked as ended."""
        if group.request.deadline is None:
            return
        self._num_live -= 1
        if len(self._heap) > 2 * self._num_live + 64:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapify(self._heap)

    def pop_expired(self, now: float) -> list[SequenceGroup]:
        """Live groups whose deadline is not after ``now``; the caller ends each."""
        expired = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            group = heappop(heap)[2]
            if not group.ended:
                expired.append(group)
        return expired
