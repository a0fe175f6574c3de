"""How long to wait before trying again: exponential backoff with full jitter."""

from __future__ import annotations

import random
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

    def next(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling = self._ceiling
        self._ceiling = min(ceiling * self._factor, self._longest)
        return self._uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """An attempt succeeded: the next wait is the first again."""
        self._ceiling = self._first
