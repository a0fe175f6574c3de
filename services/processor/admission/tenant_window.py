"""Bounds how many of a tenant's requests are tokenized and queued at engines; the others are held back unparsed.

Tokenizing a request, submitting it and holding it in an engine costs several times as much as reading it. So the
requests of a flood go ahead only when engines will soon need them. Otherwise other tenants would wait for that work,
and it would be wasted if the client dropped the flood. Higher priorities (lower numbers) go first here, too.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

MIN_AHEAD = 64
"""Requests of a tenant that may always be ahead, even if engines compute fewer at a time."""

_T = TypeVar("_T")


class TenantWindow(Generic[_T]):
    """The requests ahead and held back, per tenant. A tenant without requests takes no memory here."""

    def __init__(self) -> None:
        self._ahead: dict[str, tuple[str, int]] = {}
        """Tenant and priority of requests ahead, keyed by request id."""
        self._priorities: dict[str, list[int]] = {}
        """Priorities of the requests ahead, in order, keyed by tenant."""
        self._held_back: dict[str, dict[int, OrderedDict[str, _T]]] = {}
        """Work held back, keyed by tenant, by priority, and by request id in order of arrival."""

    def __bool__(self) -> bool:
        """Whether anything is held back."""
        return bool(self._held_back)

    def enter(self, tenant: str, priority: int, request_id: str, work: _T, max_ahead: int | None) -> bool:
        """Return whether a request may go ahead now; else it is held back. ``max_ahead`` None: no bound."""
        if self._has_room(tenant, priority, max_ahead):
            self._go_ahead(tenant, priority, request_id)
            return True
        self._held_back.setdefault(tenant, {}).setdefault(priority, OrderedDict())[request_id] = work
        return False

    def remove(self, tenant: str, priority: int, request_id: str) -> _T | None:
        """Remove a request that is held back; None if it is not."""
        queues = self._held_back.get(tenant, {})
        work = queues.get(priority, OrderedDict()).pop(request_id, None)
        if work is not None and not queues[priority]:
            del queues[priority]
            if not queues:
                del self._held_back[tenant]
        return work

    def leave(self, request_id: str) -> None:
        """An engine has begun a request that was ahead, or it has ended. Idempotent."""
        if (rank := self._ahead.pop(request_id, None)) is None:
            return
        tenant, priority = rank
        self._priorities[tenant].remove(priority)
        if not self._priorities[tenant]:
            del self._priorities[tenant]

    def release(self, max_ahead: Callable[[str], int | None]) -> list[_T]:
        """The requests that may go ahead now; ``max_ahead`` returns a tenant's bound, and is called once per tenant."""
        released = []
        for tenant in list(self._held_back):
            queues, most = self._held_back[tenant], max_ahead(tenant)
            for priority in sorted(queues):
                queue = queues[priority]
                while queue and self._has_room(tenant, priority, most):
                    request_id, work = queue.popitem(last=False)
                    self._go_ahead(tenant, priority, request_id)
                    released.append(work)
                if queue:
                    break  # lower priorities have none either
                del queues[priority]
            if not queues:
                del self._held_back[tenant]
        return released

    def clear(self) -> None:
        """Forget everything; later calls of ``leave`` do nothing."""
        self._ahead.clear()
        self._priorities.clear()
        self._held_back.clear()

    def _has_room(self, tenant: str, priority: int, most: int | None) -> bool:
        """Only requests of the same or a higher priority count: engines begin those first."""
        return most is None or bisect_right(self._priorities.get(tenant, ()), priority) < most

    def _go_ahead(self, tenant: str, priority: int, request_id: str) -> None:
        self._ahead[request_id] = tenant, priority
        insort(self._priorities.setdefault(tenant, []), priority)
