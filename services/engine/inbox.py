"""Orders for the engine core that wait for its next turn, within bounds.

Of each request there is at most one entry: who cancels what was not handed over yet takes it back, and who cancels
again adds nothing. How many requests there are is bounded by the ledgers, which count one until the core has let go of
it; other calls are bounded here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from engine_core.request import Request

MAX_CALLS = 64
"""Functions that wait to be run between two steps."""


class TooManyCalls(Exception):
    """As many functions as may be wait already."""


@dataclass(slots=True)
class RequestOrders:
    """What the core is to do about one request: begin it, then cancel some of its choices."""

    request: Request | None = None
    """To begin, unless that was handed over before."""
    cancelled: set[int | None] = field(default_factory=set)
    """Choices; None for all of them."""


@dataclass(slots=True)
class Orders:
    """All that the core is to do before its next step."""

    requests: dict[str, RequestOrders] = field(default_factory=dict)
    """By their names in the core, in the order in which they came."""
    calls: list[Callable[[], None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.requests or self.calls)


class Inbox:
    """Filled from any thread, and emptied by the one that computes."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """To be held, and notified, by who wakes the thread for another reason."""
        self._orders = Orders()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._orders)

    def add(self, core_id: str, request: Request) -> None:
        """Begin a request."""
        with self.changed:
            self._orders.requests[core_id] = RequestOrders(request)
            self.changed.notify()

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Cancel a choice of a request, or all; False if that was done here, because the core has not heard of it."""
        with self.changed:
            orders = self._orders.requests.setdefault(core_id, RequestOrders())
            if choice is None and orders.request is not None:
                del self._orders.requests[core_id]
                return False
            if choice is None:
                orders.cancelled = {None}
            elif None not in orders.cancelled:
                orders.cancelled.add(choice)
            self.changed.notify()
            return True

    def call(self, function: Callable[[], None]) -> None:
        """Run a function. Raises ``TooManyCalls``."""
        with self.changed:
            if len(self._orders.calls) >= MAX_CALLS:
                raise TooManyCalls
            self._orders.calls.append(function)
            self.changed.notify()

    def take(self) -> Orders:
        """All that waits."""
        with self.changed:
            orders, self._orders = self._orders, Orders()
        return orders
