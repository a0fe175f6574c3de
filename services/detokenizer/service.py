"""``DetokenizerService``: one stream per processor; each frame holds the output since the previous one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog
from ringline.detokenizer.v1 import detokenizer_pb2

from services.common.links.zone import tell_zone
from services.common.rpc.handlers import Context
from services.common.rpc.message_limits import SMALL_MESSAGE, parse
from services.common.rpc.open_calls import end_call_soon
from services.common.rpc.shared_messages import peer_changes_to_proto, welcome_message
from services.detokenizer.detokenizer_messages import outputs_of
from services.detokenizer.subscribers import Subscriber, Subscribers
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import DETOKENIZER_CAPABILITIES, PeerId, negotiate
from services.ring.roles import Role, check_name

log = structlog.get_logger(__name__)
METHOD_ROLES = {"Subscribe": {Role.PROCESSOR}}
"""Roles that may call each method."""
MAX_FRAME_BYTES = 1 << 20


class DetokenizerService:
    """Serves Subscribe: sends the output that ``engine_decoder`` puts into the outboxes."""

    def __init__(
        self,
        me: PeerId,
        subscribers: Subscribers,
        load: Callable[[], detokenizer_pb2.Load],
        *,
        stall_timeout: float,
        max_message_bytes: int,
        drain_grace: float,
        zone: str | None = None,
    ) -> None:
        """``stall_timeout``: seconds after which a processor that reads nothing loses its stream."""
        self._me = me
        self._subscribers = subscribers
        self._load = load
        self._stall_timeout = stall_timeout
        self._max_message_bytes = max_message_bytes
        self._drain_grace = drain_grace
        self._zone = zone
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
        await tell_zone(context, self._zone)
        send = partial(subscriber.write, context.write, stall_timeout=self._stall_timeout)
        welcome = welcome_message(self._me, version, self._max_message_bytes, DETOKENIZER_CAPABILITIES)
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
