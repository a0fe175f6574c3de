"""``DetokenizerService``: one stream per processor; each frame holds all output since the frame before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import structlog
from ringline.detokenizer.v1 import detokenizer_pb2

from services.common.rpc.handlers import Context
from services.common.rpc.message_limits import SMALL_MESSAGE, parse
from services.common.rpc.open_calls import end_call_soon
from services.common.rpc.shared_messages import peer_changes_to_proto, welcome_message
from services.common.rpc.slow_readers import OutputStream
from services.detokenizer.detokenizer_messages import outputs_of
from services.ring.attached_peers import PeerListSender
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import PeerId, negotiate
from services.ring.outbox import Outboxes
from services.ring.roles import Role, check_name

MAX_SUBSCRIBERS = 256
"""Subscribers at the same time. Bounded because each is sent the load, and may be sent the text of every request."""
log = structlog.get_logger(__name__)
METHOD_ROLES = {"Subscribe": {Role.PROCESSOR}}
"""Roles that may call each method."""
MAX_FRAME_BYTES = 1 << 20


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
        """Set the live engines; every subscriber is sent what changed."""
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

    def wake(self) -> None:
        """Wake the writer of every subscriber whose outbox has something."""
        for subscriber in self._by_name.values():
            if subscriber.outbox.pending:
                subscriber.wake.set()

    def _forget(self, subscriber: Subscriber) -> None:
        """Drop the subscriber's outbox at once."""
        self._on_gone(subscriber.peer)
        subscriber.clear()


class DetokenizerService:
    """Serves Subscribe: sends the output that ``decode`` puts into the outboxes."""

    def __init__(
        self,
        me: PeerId,
        subscribers: Subscribers,
        load: Callable[[], detokenizer_pb2.Load],
        *,
        stall_timeout: float,
        max_message_bytes: int,
        drain_grace: float,
    ) -> None:
        """``stall_timeout``: seconds after which a processor that reads nothing loses its stream."""
        self._me = me
        self._subscribers = subscribers
        self._load = load
        self._stall_timeout = stall_timeout
        self._max_message_bytes = max_message_bytes
        self._drain_grace = drain_grace
        self._draining = False

    def drain(self) -> None:
        """Tell every subscriber that this detokenizer takes no new requests."""
        self._draining = True
        self._subscribers.push_load()

    async def Subscribe(self, data: bytes, context: Context) -> None:
        hello = parse(detokenizer_pb2.SubscribeRequest, data, SMALL_MESSAGE).hello
        version = negotiate(hello.name, hello.incarnation, hello.min_version, hello.max_version)
        check_name(hello.name, METHOD_ROLES["Subscribe"])
        subscriber = self._subscribers.add(PeerId(hello.name, hello.incarnation))
        log.info("subscribed", peer=hello.name, incarnation=hello.incarnation)
        stalled = ""
        try:
            await self._serve(subscriber, context, version)
        except TimeoutError:
            stalled = f"the subscriber does not read: {subscriber.stall_reason(self._stall_timeout)}"
        finally:
            self._subscribers.remove(subscriber)
            log.info("unsubscribed", peer=hello.name, incarnation=hello.incarnation)
        end_call_soon()
        if stalled and not subscriber.superseded:
            raise Refused(Code.RESOURCE_EXHAUSTED, stalled, reason=Reason.STALLED)
        raise Refused(Code.ABORTED, "superseded by a newer stream of the same processor")

    async def _serve(self, subscriber: Subscriber, context: Context, version: int) -> None:
        """Write new output until another stream supersedes this one."""
        send = partial(subscriber.write, context.write, stall_timeout=self._stall_timeout)
        welcome = welcome_message(self._me, version, self._max_message_bytes)
        await send(detokenizer_pb2.SubscribeResponse(welcome=welcome))
        draining_told = False
        while True:
            await subscriber.wake.wait()
            subscriber.wake.clear()
            subscriber.check()
            if subscriber.superseded:
                return
            while subscriber.outbox.pending or subscriber.load_due:
                response = self._next(subscriber)
                if self._draining and not draining_told:
                    draining_told = True
                    response.draining.grace_ms = round(self._drain_grace * 1000)
                await send(response)

    def _next(self, subscriber: Subscriber) -> detokenizer_pb2.SubscribeResponse:
        response = detokenizer_pb2.SubscribeResponse()
        if subscriber.load_due:
            subscriber.load_due = False
            response.load.CopyFrom(self._load())
        if (change := subscriber.engines.take()) is not None:
            response.engines.CopyFrom(peer_changes_to_proto(change))
        if subscriber.outbox.pending:
            response.outputs.CopyFrom(outputs_of(subscriber.outbox.take(MAX_FRAME_BYTES)))
        return response
