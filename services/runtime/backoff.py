"""How long to wait before trying again, and when to stop trying."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable


class Backoff:
    """The schedule of one reconnect or restart loop; it sleeps nowhere and has no clock.

    The n-th wait is drawn uniformly from [ceiling / 2, ceiling], with ceiling = min(first · factorⁿ, longest): the
    spread keeps peers that lost the same server from coming back in one instant ("Exponential Backoff And Jitter",
    AWS Architecture Blog, 2015; half of it is kept so that no wait is near zero).
    """

    def __init__(
        self,
        first: float,
        longest: float,
        factor: float = 2.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``first`` and ``longest`` in seconds; ``uniform(low, high)`` draws."""
        if not 0 < first <= longest or factor < 1:
            raise ValueError(f"no backoff from {first} to {longest} by {factor}")
        self._first, self._longest, self._factor, self._uniform = first, longest, factor, uniform
        self._ceiling = first
        self.successes = 0
        """Attempts that succeeded."""

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling = self._ceiling
        self._ceiling = min(ceiling * self._factor, self._longest)
        return self._uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """An attempt succeeded: the next wait is the first again."""
        self.successes += 1
        self._ceiling = self._first


class RestartLimit:
    """When a process that died is started again, and when no more. Has no clock of its own."""

    def __init__(self, backoff: Backoff, deaths: int = 5, window: float = 60.0) -> None:
        """``deaths`` within ``window`` seconds are too many."""
        self._backoff, self._deaths, self._window = backoff, deaths, window
        self._recent: deque[float] = deque()

    def died(self, now: float) -> float | None:
        """The process died at ``now``: seconds to wait before it is started again, or None to give up."""
        while self._recent and now - self._recent[0] >= self._window:
            self._recent.popleft()
        if not self._recent:
            self._backoff.reset()
        self._recent.append(now)
        return None if len(self._recent) >= self._deaths else self._backoff.next()
