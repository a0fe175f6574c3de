"""How fast things that wait get done, as measured lately."""

from __future__ import annotations

import math

_MEMORY = 5.0
"""Seconds after which a measurement counts e times less."""
_LEAST_MEASURED = 1.0
"""Seconds of waiting without a pause before the speed is believed."""
_LONGEST_PAUSE = 1.0
"""Seconds without any that count at most: who was gone has not become slow."""


class Throughput:
    """Units per second, of tokens or whatever is counted."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Measure from here on."""
        self._units = self._seconds = 0.0
        self._last = now

    def add(self, units: int, now: float) -> None:
        """So many were done since the last time."""
        decay = math.exp(-min(now - self._last, _LONGEST_PAUSE) / _MEMORY)
        self._units = self._units * decay + units
        self._seconds = self._seconds * decay + _MEMORY * (1 - decay)
        self._last = now

    def per_second(self) -> float | None:
        """None until it has been measured for long enough."""
        return self._units / self._seconds if self._seconds >= _LEAST_MEASURED else None
