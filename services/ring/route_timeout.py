"""How long a request has been without a route: the time that ``--patience`` limits.

The clock starts when the route is lost and is reset once output arrives on a new one. If the new route is lost too, the
time on it does not count; if its engine refuses the request, it counts. So a request that engines keep refusing runs
out of time.
"""

from __future__ import annotations


class RouteTimeout:
    """The clock of one request. Times are seconds on the owner's monotonic clock."""

    __slots__ = ("_routed_at", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        """When the outage began, moved forward by the time spent on routes; None outside an outage."""
        self._routed_at: float | None = None
        """When the request got its present route; None while it has none."""

    def lost(self, now: float) -> None:
        """The request lost its route, or has not had one yet."""
        if self._since is None:
            self._since = now
        elif self._routed_at is not None:
            self._since += now - self._routed_at
        self._routed_at = None

    def refused(self, now: float) -> None:
        """The engine or detokenizer of the route refused the request."""
        if self._since is None:
            self._since = now
        self._routed_at = None

    def routed(self, now: float) -> None:
        """The request was sent on a route."""
        self._routed_at = now

    def heard(self) -> None:
        """Output arrived on the present route. Late output of a lost route changes nothing."""
        if self._routed_at is not None:
            self._since = None

    def waited(self, now: float) -> float:
        """Seconds that a request without a route has waited."""
        return 0.0 if self._since is None else now - self._since
