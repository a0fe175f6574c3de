"""Bounds how many requests of a tenant are tokenized and queued at engines; the others are held back unparsed.

Tokenizing a request, submitting it and holding it in an engine costs several times as much as reading it. So the
requests of a flood go ahead only when engines will soon need them. Otherwise other tenants would wait for that work,
and it would be wasted if the client dropped the flood. Requests of higher priority (lower number) go first here, too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

MIN_AHEAD = 64
"""The least number of a tenant's requests that may be ahead, even if engines compute fewer at a time."""

_T = TypeVar("_T")


class TenantWindow(Generic[_T]):
    """The requests ahead and held back, per tenant. A tenant without requests takes no memory here."""

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[str, int]] = {}
        """Tenant and priority of requests ahead and held back, keyed by request id."""
        self._ahead: dict[str, Counter[int]] = {}
        """Number of requests ahead, keyed by tenant and priority."""
        self._held_back: dict[str, dict[int, OrderedDict[str, _T]]] = {}
        """Work held back, keyed by tenant, priority and request id, in order of arrival."""

    def __bool__(self) -> bool:
        """Whether anything is held back."""
        return bool(self._held_back)

    def enter(self, tenant: str, priority: int, request_id: str, work: _T, max_ahead: int | None) -> bool:
        """Return whether a request may go ahead at once; if not, it is held back. ``max_ahead`` None: no bound."""
        self._ranks[request_id] = tenant, priority
        if max_ahead is None or self._has_room(tenant, priority, max_ahead):
            self._go_ahead(tenant, priority)
            return True
        self._held_back.setdefault(tenant, {}).setdefault(priority, OrderedDict())[request_id] = work
        return False

    def remove(self, request_id: str) -> _T | None:
        """Remove a request that is held back; None if it is not."""
        if (rank := self._ranks.get(request_id)) is None:
            return None
        tenant, priority = rank
        queue = self._held_back.get(tenant, {}).get(priority)
        if queue is None or (work := queue.pop(request_id, None)) is None:
            return None
        del self._ranks[request_id]
        self._tidy(tenant, priority)
        return work

    def leave(self, request_id: str) -> None:
        """An engine has begun a request that was ahead, or it has ended. Idempotent."""
        if (rank := self._ranks.pop(request_id, None)) is None:
            return
        tenant, priority = rank
        ahead = self._ahead[tenant]
        ahead[priority] -= 1
        if not ahead[priority]:
            del ahead[priority]
        if not ahead:
            del self._ahead[tenant]

    def release(self, max_ahead: Callable[[str], int | None]) -> list[_T]:
        """The requests that may go ahead now; ``max_ahead`` gives the bound of each tenant."""
        released = []
        for tenant in list(self._held_back):
            most = max_ahead(tenant)
            while queues := self._held_back.get(tenant):
                priority = min(queues)
                if most is not None and not self._has_room(tenant, priority, most):
                    break
                _, work = queues[priority].popitem(last=False)
                self._go_ahead(tenant, priority)
                self._tidy(tenant, priority)
                released.append(work)
        return released

    def clear(self) -> None:
        """Forget everything; later calls of ``leave`` do nothing."""
        self._ranks.clear()
        self._ahead.clear()
        self._held_back.clear()

    def _has_room(self, tenant: str, priority: int, most: int) -> bool:
        """Only requests of the same or a higher priority count: engines begin those first."""
        ahead = self._ahead.get(tenant)
        return ahead is None or sum(count for each, count in ahead.items() if each <= priority) < most

    def _go_ahead(self, tenant: str, priority: int) -> None:
        self._ahead.setdefault(tenant, Counter())[priority] += 1

    def _tidy(self, tenant: str, priority: int) -> None:
        queues = self._held_back[tenant]
        if not queues[priority]:
            del queues[priority]
        if not queues:
            del self._held_back[tenant]
