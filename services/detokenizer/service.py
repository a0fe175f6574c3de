"""``DetokenizerService``: one stream per processor, each frame with everything that is new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import structlog
from ringline.detokenizer.v1 import detokenizer_pb2

from services.detokenizer.frames import outputs_of
from services.detokenizer.subscribers import Subscriber, Subscribers
from services.ring.events import Code, Reason, Refused, Status
from services.ring.identity import PeerId, negotiate
from services.runtime.calls import end_soon
from services.runtime.parsing import SMALL, parse
from services.runtime.roles import Role, check_name
from services.runtime.wire import abort, peer_changes_to_proto, welcome_of

log = structlog.get_logger(__name__)

METHOD_ROLES = {"Subscribe": {Role.PROCESSOR}}
"""Whose certificates allow what."""
MAX_FRAME_BYTES = 1 << 20
_SUPERSEDED = Status(Code.ABORTED, "a newer stream of the same processor took this one's place")


class DetokenizerService:
    """The RPC; what it sends is put into the outboxes by ``decode``."""

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
        """``stall_timeout`` in seconds: a processor that takes nothing for so long loses its stream."""
        self._me = me
        self._subscribers = subscribers
        self._load = load
        self._stall_timeout = stall_timeout
        self._max_message_bytes = max_message_bytes
        self._drain_grace = drain_grace
        self._draining = False

    def drain(self) -> None:
        """Tell every subscriber that nothing new is taken."""
        self._draining = True
        self._subscribers.push_load()

    async def Subscribe(self, data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        hello = parse(detokenizer_pb2.SubscribeRequest, data, SMALL).hello
        try:
            version = negotiate(hello.name, hello.incarnation, hello.min_version, hello.max_version)
            check_name(hello.name, METHOD_ROLES["Subscribe"])
            subscriber = self._subscribers.add(PeerId(hello.name, hello.incarnation))
        except Refused as refused:
            await abort(context, refused.status)
        log.info("subscribed", peer=hello.name, incarnation=hello.incarnation)
        try:
            await self._serve(subscriber, context, version)
            end = _SUPERSEDED
        except TimeoutError:
            message = f"the subscriber does not read: {subscriber.stall(self._stall_timeout)}"
            end = Status(Code.RESOURCE_EXHAUSTED, message, given_reason=Reason.STALLED)
            if subscriber.superseded:
                end = _SUPERSEDED
        finally:
            self._subscribers.remove(subscriber)
            log.info("unsubscribed", peer=hello.name, incarnation=hello.incarnation)
        end_soon()
        await abort(context, end)

    async def _serve(self, subscriber: Subscriber, context: grpc.aio.ServicerContext[Any, Any], version: int) -> None:
        """Write what is new, until another stream takes this one's place."""
        welcome = welcome_of(self._me, version, self._max_message_bytes)
        await self._send(subscriber, context, detokenizer_pb2.SubscribeResponse(welcome=welcome))
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
                await self._send(subscriber, context, response)

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

    async def _send(
        self,
        subscriber: Subscriber,
        context: grpc.aio.ServicerContext[Any, Any],
        response: detokenizer_pb2.SubscribeResponse,
    ) -> None:
        async with subscriber.writing(self._stall_timeout):
            await context.write(response)
