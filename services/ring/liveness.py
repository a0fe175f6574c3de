"""Failure detection: heartbeats prove that a peer's process lives, a step counter proves that it makes progress.

A suspected peer gets no new work and is trusted again at its next heartbeat, so a false alarm is harmless.
"""

from __future__ import annotations

BEAT_INTERVAL = 0.5
"""Seconds between heartbeats (messages with the load)."""
BEAT_LIMIT = 2.0
"""Seconds without a heartbeat after which a peer is suspected."""
STEP_FLOOR, STEP_FACTOR, LARGEST_STEP_FACTOR = 10.0, 20.0, 5.0


def step_limit(longest_recent: float, largest: float = 0.0) -> float:
    """Seconds that a step may take; ``largest``: the measured duration of the largest possible step, if known."""
    return max(STEP_FLOOR, STEP_FACTOR * longest_recent, LARGEST_STEP_FACTOR * largest)


class Liveness:
    """The failure detector of one peer; times are seconds on the caller's monotonic clock."""

    def __init__(self, now: float) -> None:
        self._last_beat = now
        self._last_move = now
        self._steps = -1
        self._step_timeout = STEP_FLOOR
        self._busy = False

    def beat(self, now: float, steps: int = 0, *, busy: bool = False, step_timeout: float = STEP_FLOOR) -> None:
        """A heartbeat arrived. ``steps``: computed since the peer's start; ``step_timeout``: seconds one may take."""
        if steps != self._steps or not busy:
            self._last_move = now
        self._last_beat, self._steps, self._busy, self._step_timeout = now, steps, busy, step_timeout

    def forgive(self, seconds: float) -> None:
        """Discount ``seconds`` in which this process itself was stopped and could not receive heartbeats."""
        self._last_beat += seconds
        self._last_move += seconds

    def suspicion(self, now: float) -> str | None:
        """Why the peer must get no new work; None if it may."""
        silent = now - self._last_beat
        if silent > BEAT_LIMIT:
            return f"no sign of life for {silent:.1f} s"
        still = now - self._last_move
        # The engine's own watchdog ends a hung engine before this limit, unless the watchdog fails too.
        if self._busy and still > self._step_timeout + BEAT_LIMIT:
            return f"no step for {still:.1f} s with work to do"
        return None
