"""Is a request poison? Which lives of engines ended while they computed it, and when that is too many.

A life that comes back had merely been cut off, so an end counts once the same life has stayed away for a while. A
request that had only waited where an engine died is not to blame; but as an engine may die before it can tell what it
begins to compute, there is a bound on that too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from services.ring.identity import PeerId

MAX_CRASH_RESUBMITS = 2
"""A request that so many engines computed when they died is given to no other."""
RETURN_GRACE = 3.0
"""Seconds after which a life that has not come back is over: longer than peers take to dial again."""
WAITING_FACTOR = 5
"""An engine that died while a request waited there counts as this fraction of one that computed it."""


class Blame(enum.Enum):
    """Whether a request may be given to another engine."""

    NONE = "none"
    """It may."""
    UNSURE = "unsure"
    """Too many engines have gone, but they may have been cut off: it has to wait."""
    POISON = "poison"
    """It may not."""


class PoisonTracker:
    """Of one request. Times are seconds on the owner's monotonic clock."""

    __slots__ = ("_computing", "_waiting")

    def __init__(self) -> None:
        self._computing: dict[PeerId, float] = {}
        self._waiting: set[PeerId] = set()

    def ended(self, engine: PeerId, now: float, *, computing: bool) -> None:
        """A life of an engine ended, or was cut off, that had the request."""
        if computing:
            self._computing[engine] = now
        else:
            self._waiting.add(engine)

    @property
    def count(self) -> int:
        """Lives that ended while they had it."""
        return len(self._computing) + len(self._waiting)

    def blame(self, now: float, limit: int, attached: Callable[[PeerId], bool]) -> Blame:
        """``limit``: so many engines that died while they computed it are too many."""
        self._computing = {engine: at for engine, at in self._computing.items() if not attached(engine)}
        self._waiting = {engine for engine in self._waiting if not attached(engine)}
        if len(self._waiting) >= WAITING_FACTOR * limit:
            return Blame.POISON
        if len(self._computing) < limit:
            return Blame.NONE
        over = sum(now - at >= RETURN_GRACE for at in self._computing.values())
        return Blame.POISON if over >= limit else Blame.UNSURE
