"""How long a request has been without a route: one clock per outage, however many routes are tried in it.

An outage begins when a request has no route or loses it, and ends when something is heard of the request on another
one. Time on a route that refused it counts; time on one that had it, perhaps in a queue, and was then lost does not.
"""

from __future__ import annotations


class Outage:
    """Of one request. Times are seconds on the owner's monotonic clock."""

    __slots__ = ("_routed_at", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        """When it began, later by the time that does not count; None while all is well."""
        self._routed_at: float | None = None
        """Since when the request has its present route; None while it has none."""

    def lost(self, now: float) -> None:
        """The route was lost, or there was none yet."""
        if self._since is None:
            self._since = now
        elif self._routed_at is not None:
            self._since += now - self._routed_at
        self._routed_at = None

    def refused(self, now: float) -> None:
        """The route did not take the request."""
        if self._since is None:
            self._since = now
        self._routed_at = None

    def routed(self, now: float) -> None:
        """The request was sent on a route."""
        self._routed_at = now

    def heard(self) -> None:
        """News of the request came: where it was sent, it is. Late news of a route that was lost says nothing."""
        if self._routed_at is not None:
            self._since = None

    def waited(self, now: float) -> float:
        """Seconds for which the request, which has no route now, has waited."""
        return 0.0 if self._since is None else now - self._since
