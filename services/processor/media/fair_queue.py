"""A queue that is fair between tenants in time: whoever has used the least of it is next.

The time that work takes is known only afterwards, so a tenant's clock is advanced then (as in start-time fair queueing:
Goyal, Vin and Cheng, SIGCOMM 1996). A tenant that comes late starts at the clock of those who wait.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """Work by tenant, first in, first out within each."""

    def __init__(self) -> None:
        self._work: dict[str, deque[_T]] = {}
        """None is empty."""
        self._clocks: dict[str, float] = {}
        """Seconds that a tenant has used; forgotten when nothing waits and nothing runs."""
        self._now = 0.0
        """The clock of the tenant that was served last."""
        self._running = 0

    def __bool__(self) -> bool:
        return bool(self._work)

    def append(self, tenant: str, work: _T) -> None:
        if (queue := self._work.get(tenant)) is None:
            queue = self._work[tenant] = deque()
            self._clocks[tenant] = max(self._clocks.get(tenant, 0.0), self._now)
        queue.append(work)

    def remove(self, tenant: str, work: _T) -> bool:
        """Whether it waited; then it does no longer."""
        queue = self._work.get(tenant)
        if queue is None or work not in queue:
            return False
        queue.remove(work)
        self._drop_if_empty(tenant)
        return True

    def take(self) -> _T:
        """The next work; ``done`` must follow."""
        tenant = min(self._work, key=lambda name: self._clocks[name])
        self._now = self._clocks[tenant]
        work = self._work[tenant].popleft()
        self._running += 1
        self._drop_if_empty(tenant)
        return work

    def done(self, tenant: str, seconds: float) -> None:
        """Work of a tenant took so long."""
        self._running -= 1
        self._clocks[tenant] = self._clocks.get(tenant, self._now) + seconds
        if not self._running and not self._work:
            self._clocks.clear()
            self._now = 0.0

    def clear(self) -> list[_T]:
        """Take all work that waits."""
        waiting = [work for queue in self._work.values() for work in queue]
        self._work.clear()
        return waiting

    def _drop_if_empty(self, tenant: str) -> None:
        if not self._work[tenant]:
            del self._work[tenant]
