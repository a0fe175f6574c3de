"""How many requests of a tenant are ahead of what engines compute: the rest is kept as it came, and costs nothing yet.

To tokenize a request, to submit it and to hold it in an engine takes several times what it takes to read it. So a
flood's requests go no further than engines will soon need them; else who comes beside it waits for all that work, and
if the flood is dropped it was done for nobody. More urgent ones go before less urgent ones here, too.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

LEAST = 64
"""Requests of a tenant that may be ahead, however little engines compute at a time."""

_T = TypeVar("_T")


class TenantWindow(Generic[_T]):
    """Tenants are remembered while they have something here."""

    def __init__(self) -> None:
        self._ranks: dict[str, tuple[str, int]] = {}
        """Tenant and priority by name, of what is ahead and of what is kept."""
        self._ahead: dict[str, Counter[int]] = {}
        """How many there are of each priority, by tenant."""
        self._kept: dict[str, dict[int, OrderedDict[str, _T]]] = {}
        """By tenant, priority and name, in order of arrival."""

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return bool(self._kept)

    def enter(self, tenant: str, priority: int, name: str, work: _T, most: int | None) -> bool:
        """Whether a request may go ahead at once; else it is kept. ``most`` may be ahead; None for any number."""
        self._ranks[name] = tenant, priority
        if most is None or self._has_room(tenant, priority, most):
            self._go(tenant, priority)
            return True
        self._kept.setdefault(tenant, {}).setdefault(priority, OrderedDict())[name] = work
        return False

    def remove(self, name: str) -> _T | None:
        """Take away what is kept by this name; None if nothing is."""
        if (rank := self._ranks.get(name)) is None:
            return None
        tenant, priority = rank
        queue = self._kept.get(tenant, {}).get(priority)
        if queue is None or (work := queue.pop(name, None)) is None:
            return None
        del self._ranks[name]
        self._tidy(tenant, priority)
        return work

    def leave(self, name: str) -> None:
        """What was ahead has begun, or ended. Idempotent."""
        if (rank := self._ranks.pop(name, None)) is None:
            return
        tenant, priority = rank
        ahead = self._ahead[tenant]
        ahead[priority] -= 1
        if not ahead[priority]:
            del ahead[priority]
        if not ahead:
            del self._ahead[tenant]

    def release(self, most_of: Callable[[str], int | None]) -> list[_T]:
        """What may go ahead now; ``most_of`` a tenant may be."""
        released = []
        for tenant in list(self._kept):
            most = most_of(tenant)
            while queues := self._kept.get(tenant):
                priority = min(queues)
                if most is not None and not self._has_room(tenant, priority, most):
                    break
                _, work = queues[priority].popitem(last=False)
                self._go(tenant, priority)
                self._tidy(tenant, priority)
                released.append(work)
        return released

    def clear(self) -> None:
        """Forget everything: what leaves later was never here."""
        self._ranks.clear()
        self._ahead.clear()
        self._kept.clear()

    def _has_room(self, tenant: str, priority: int, most: int) -> bool:
        """Only what is at least as urgent is in the way of a request: engines begin it before the others."""
        ahead = self._ahead.get(tenant)
        return ahead is None or sum(count for each, count in ahead.items() if each <= priority) < most

    def _go(self, tenant: str, priority: int) -> None:
        self._ahead.setdefault(tenant, Counter())[priority] += 1

    def _tidy(self, tenant: str, priority: int) -> None:
        queues = self._kept[tenant]
        if not queues[priority]:
            del queues[priority]
        if not queues:
            del self._kept[tenant]
