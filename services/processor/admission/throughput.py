"""The recent throughput of a queue, as an exponentially weighted average."""

from __future__ import annotations

import math

_MEMORY = 5.0
"""Time constant of the average, seconds."""
_MIN_MEASURED = 1.0
"""Seconds of measurement, with the queue never empty, before there is an estimate."""
_MAX_PAUSE = 1.0
"""Longer pauses count as this many seconds: they mean that engines were away, not that they became slow."""


class Throughput:
    """Units per second; the unit (tokens, bytes) is the caller's."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Start again: the queue was empty until now."""
        self._units = self._seconds = 0.0
        self._last = now

    def add(self, units: int, now: float) -> None:
        """Count the units done since the last call."""
        decay = math.exp(-min(now - self._last, _MAX_PAUSE) / _MEMORY)
        self._units = self._units * decay + units
        self._seconds = self._seconds * decay + _MEMORY * (1 - decay)
        self._last = now

    def per_second(self) -> float | None:
        """Units per second; None until the measurement is long enough."""
        return self._units / self._seconds if self._seconds >= _MIN_MEASURED else None
