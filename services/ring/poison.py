"""The poison rule: how many engines may die while computing a request before it is no longer resubmitted.

An engine that comes back with the same incarnation was only cut off, so a death counts only once the engine has been
away for ``RETURN_GRACE``. A request that was merely queued at a dying engine is hardly to blame. But an engine may die
before it can report what it begins to compute, so deaths while the request was queued have a (larger) limit, too.
"""

from __future__ import annotations

import enum
from collections.abc import Container

from services.ring.identity import PeerId

MAX_CRASH_RESUBMITS = 2
"""A request is not resubmitted after this many engines died computing it."""
RETURN_GRACE = 3.0
"""Seconds after which an engine that has not come back counts as dead: longer than peers take to dial again."""
WAITING_FACTOR = 5
"""The limit on deaths while a request was queued, as a multiple of the limit on deaths while it was computed."""


class Blame(enum.Enum):
    """Whether a request may be resubmitted."""

    NONE = "none"
    """It may be resubmitted."""
    UNSURE = "unsure"
    """Too many engines are gone, but some may only be cut off: it has to wait until that is known."""
    POISON = "poison"
    """It may not be resubmitted."""


class PoisonTracker:
    """The engines that died with one request. Times are seconds on the owner's monotonic clock."""

    __slots__ = ("_computing", "_waiting")

    def __init__(self) -> None:
        self._computing: dict[PeerId, float] = {}
        self._waiting: set[PeerId] = set()

    def engine_died(self, engine: PeerId, now: float, *, computing: bool) -> None:
        """An engine that had the request died, or was cut off."""
        if computing:
            self._computing[engine] = now
        else:
            self._waiting.add(engine)

    @property
    def count(self) -> int:
        """Engines that died while they had the request."""
        return len(self._computing) + len(self._waiting)

    def blame(self, now: float, limit: int, attached: Container[PeerId]) -> Blame:
        """``limit``: the request is poison once this many engines died computing it; ``attached`` engines are alive."""
        self._computing = {engine: at for engine, at in self._computing.items() if engine not in attached}
        self._waiting = {engine for engine in self._waiting if engine not in attached}
        if len(self._waiting) >= WAITING_FACTOR * limit:
            return Blame.POISON
        if len(self._computing) < limit:
            return Blame.NONE
        over = sum(now - at >= RETURN_GRACE for at in self._computing.values())
        return Blame.POISON if over >= limit else Blame.UNSURE
