"""The subscribed processors, each with its outbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.common.rpc.output_stream import OutputStream
from services.ring.attached_peers import PeerListSender
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import PeerId
from services.ring.outbox import Outboxes

MAX_SUBSCRIBERS = 256
"""Simultaneous subscribers. Bounded because each is sent the load, and may be sent the text of every request."""


class Subscriber(OutputStream):
    """One processor's subscription."""

    def __init__(self, peer: PeerId, engines: Iterable[PeerId], outboxes: Outboxes) -> None:
        """``engines``: the live engines now. ``outboxes`` bounds unread output."""
        super().__init__(outboxes, peer.name)
        self.peer = peer
        self.engines = PeerListSender(engines)
        self.load_due = True
        self.superseded = False


class Subscribers:
    """The subscriptions by processor name; a newer incarnation supersedes an older one."""

    def __init__(self, on_gone: Callable[[PeerId], None], outboxes: Outboxes | None = None) -> None:
        """``on_gone`` is called when a subscription ends or is superseded."""
        self._on_gone = on_gone
        self._outboxes = outboxes or Outboxes()
        self._by_name: dict[str, Subscriber] = {}
        self._engines: frozenset[PeerId] = frozenset()

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, peer: PeerId) -> Subscriber:
        """A processor subscribed; raises ``Refused`` if a newer incarnation or too many others are subscribed."""
        old = self._by_name.get(peer.name)
        if old is None and len(self._by_name) >= MAX_SUBSCRIBERS:
            message = f"hello: limit of {MAX_SUBSCRIBERS} subscribers reached; use another detokenizer"
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
        if self._by_name.get(subscriber.peer.name) is subscriber:
            del self._by_name[subscriber.peer.name]
            self._forget(subscriber)

    def find(self, peer: PeerId) -> Subscriber | None:
        """The subscription of this incarnation of a processor; None if there is none."""
        subscriber = self._by_name.get(peer.name)
        return subscriber if subscriber is not None and subscriber.peer == peer else None

    def update_engines(self, engines: frozenset[PeerId]) -> None:
        """Set the live engines; every subscriber is sent the changes."""
        added, removed = engines - self._engines, self._engines - engines
        self._engines = engines
        for subscriber in self._by_name.values():
            for engine in removed:
                subscriber.engines.remove(engine)
            for engine in added:
                subscriber.engines.add(engine)

    def push_load(self) -> None:
        """Make every subscriber's stream send the load."""
        for subscriber in self._by_name.values():
            subscriber.load_due = True
            subscriber.wake.set()

    def _forget(self, subscriber: Subscriber) -> None:
        """Drop the subscriber's outbox at once."""
        self._on_gone(subscriber.peer)
        subscriber.clear()
