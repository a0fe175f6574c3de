"""The processors that subscribed, and what each is owed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.ring.events import Code, Reason, Refused
from services.ring.identity import PeerId
from services.ring.outbox import Outboxes
from services.ring.peer_list import PeerListSender
from services.runtime.output_stream import OutputStream

MAX_SUBSCRIBERS = 256
"""At a time: each is told the load, and may be owed the text of every request."""


class Subscriber(OutputStream):
    """One subscription."""

    def __init__(self, peer: PeerId, engines: Iterable[PeerId], outboxes: Outboxes) -> None:
        """``engines``: those that are heard now. What waits for it is counted in ``outboxes``."""
        super().__init__(outboxes, peer.name)
        self.peer = peer
        self.engines = PeerListSender(engines)
        self.load_due = True
        self.superseded = False


class Subscribers:
    """By name; a newer incarnation takes an older one's place."""

    def __init__(self, gone: Callable[[PeerId], None], outboxes: Outboxes | None = None) -> None:
        """``gone`` hears of every subscription that ended: what was held for it goes."""
        self._gone = gone
        self._outboxes = outboxes or Outboxes()
        self._by_name: dict[str, Subscriber] = {}
        self._engines: frozenset[PeerId] = frozenset()

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, peer: PeerId) -> Subscriber:
        """A processor subscribed; raises ``Refused`` if a newer life of it is there, or too many others are."""
        old = self._by_name.get(peer.name)
        if old is None and len(self._by_name) >= MAX_SUBSCRIBERS:
            message = f"hello: {MAX_SUBSCRIBERS} are subscribed, and no more are taken"
            raise Refused(Code.RESOURCE_EXHAUSTED, message, reason=Reason.QUOTA)
        if old is not None:
            if old.peer.incarnation > peer.incarnation:
                raise Refused(
                    Code.FAILED_PRECONDITION,
                    f"hello.incarnation: {peer.name} is subscribed with the newer incarnation {old.peer.incarnation}",
                    reason=Reason.SUPERSEDED,
                )
            old.superseded = True
            old.interrupt()
            self._forget(old)
        subscriber = self._by_name[peer.name] = Subscriber(peer, self._engines, self._outboxes)
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

    def heard(self, engines: frozenset[PeerId]) -> None:
        """The engines that are heard now; every subscriber is told what changed."""
        came, went = engines - self._engines, self._engines - engines
        self._engines = engines
        for subscriber in self._by_name.values():
            for engine in went:
                subscriber.engines.remove(engine)
            for engine in came:
                subscriber.engines.add(engine)

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
        """Drop what it is owed at once."""
        self._gone(subscriber.peer)
        subscriber.clear()
