"""The processors that subscribed, and what each is owed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.ring.events import Code, Refused
from services.ring.identity import PeerId
from services.ring.outbox import Outbox

MAX_SUBSCRIBERS = 256
"""At a time: each is told the load, and may be owed the text of every request."""


class Subscriber:
    """One subscription."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer
        self.outbox = Outbox()
        self.wake = asyncio.Event()
        self.load_due = True
        self.superseded = False


class Subscribers:
    """By name; a newer incarnation takes an older one's place."""

    def __init__(self, gone: Callable[[PeerId], None]) -> None:
        """``gone`` hears of every subscription that ended: what was held for it goes."""
        self._gone = gone
        self._by_name: dict[str, Subscriber] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, peer: PeerId) -> Subscriber:
        """A processor subscribed; raises ``Refused`` if a newer life of it is there, or too many others are."""
        old = self._by_name.get(peer.name)
        if old is None and len(self._by_name) >= MAX_SUBSCRIBERS:
            raise Refused(Code.RESOURCE_EXHAUSTED, f"hello: {MAX_SUBSCRIBERS} are subscribed, and no more are taken")
        if old is not None:
            if old.peer.incarnation > peer.incarnation:
                raise Refused(
                    Code.FAILED_PRECONDITION,
                    f"hello.incarnation: {peer.name} is subscribed with the newer incarnation {old.peer.incarnation}",
                )
            old.superseded = True
            old.wake.set()
            self._forget(old)
        subscriber = self._by_name[peer.name] = Subscriber(peer)
        return subscriber

    def remove(self, subscriber: Subscriber) -> None:
        """A subscription ended."""
        if self._by_name.get(subscriber.peer.name) is subscriber:
            del self._by_name[subscriber.peer.name]
            self._forget(subscriber)

    def find(self, peer: PeerId) -> Subscriber | None:
        """The subscription of exactly this life of a processor, if it is there."""
        subscriber = self._by_name.get(peer.name)
        return subscriber if subscriber is not None and subscriber.peer == peer else None

    def push_load(self) -> None:
        """Have every subscriber told the load."""
        for subscriber in self._by_name.values():
            subscriber.load_due = True
            subscriber.wake.set()

    def wake(self) -> None:
        """Wake the writer of everyone who is owed something."""
        for subscriber in self._by_name.values():
            if subscriber.outbox.pending:
                subscriber.wake.set()

    def _forget(self, subscriber: Subscriber) -> None:
        """Drop what it is owed at once: gRPC may keep its call until it takes what is under way."""
        self._gone(subscriber.peer)
        subscriber.outbox.clear()
