"""What happened on the ring lately, as one processor saw it: for people who look, bounded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MAX_EVENTS = 30


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a peer did, or that became of it."""

    at: float
    """Seconds since 1970."""
    service: str
    """Of the peer: engine or detokenizer."""
    name: str
    what: str
    """joined, left (after it had drained), lost, silent, heard (again), draining."""
    requests: int
    """What it had of this processor's."""


class EventLog:
    """The latest events, the newest last."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def note(self, service: str, name: str, what: str, requests: int = 0) -> None:
        """It happened now."""
        self._events.append(Event(self._clock(), service, name, what, requests))

    def events(self) -> list[Event]:
        """As far as they are remembered."""
        return list(self._events)
