"""The latest events of peers, for the dashboard; bounded in number."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MAX_EVENTS = 30


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a peer."""

    at: float
    """Seconds since 1970."""
    service: str
    """The peer's service: engine or detokenizer."""
    name: str
    what: str
    """joined, left (after a drain), lost, silent, heard (after silence) or draining."""
    requests: int
    """Number of this processor's requests at the peer."""


class RecentEvents:
    """The latest events, the newest last."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    def add(self, service: str, name: str, what: str, requests: int = 0) -> None:
        self._events.append(Event(self._clock(), service, name, what, requests))

    def events(self) -> list[Event]:
        return list(self._events)
