"""Deadlines of live requests, soonest first, so that a step looks only at those that have passed."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from engine_core.scheduling.sequence import SequenceGroup


class DeadlineHeap:
    """A heap in which entries of ended groups, but not the groups, stay until they surface or outnumber the others."""

    __slots__ = ("_heap", "_live", "_serial")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, SequenceGroup] = {}
        """By the entry's number."""
        self._serial = count()

    def add(self, group: SequenceGroup) -> None:
        """Watch a group's deadline, if it has one."""
        if group.request.deadline is not None:
            group.deadline_entry = next(self._serial)
            self._live[group.deadline_entry] = group
            heappush(self._heap, (group.request.deadline, group.deadline_entry))

    def discard(self, group: SequenceGroup) -> None:
        """Watch a group no longer."""
        if group.deadline_entry is None:
            return
        self._live.pop(group.deadline_entry, None)
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapify(self._heap)

    def pop_expired(self, now: float) -> list[SequenceGroup]:
        """Groups whose deadline is not after ``now``, which are watched no longer; the caller ends each."""
        expired = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            group = self._live.pop(heappop(heap)[1], None)
            if group is not None:
                expired.append(group)
        return expired
