"""Subscriptions: one detokenizer's address, kept subscribed for as long as the process lives."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc
import structlog
from ringline.detokenizer.v1 import detokenizer_pb2, detokenizer_pb2_grpc
from ringline.types.v1 import link_pb2

from services.ring.identity import CONTRACT_VERSION, PeerId
from services.runtime.backoff import Backoff
from services.runtime.redial import LinkRefused, keep_linked

log = structlog.get_logger(__name__)

WELCOME_TIMEOUT = 10.0


class DetokenizerOwner(Protocol):
    """Whoever subscribed."""

    def detokenizer_up(self, link: Subscription, detokenizer: PeerId) -> None:
        """The subscription holds."""

    def detokenizer_frame(self, detokenizer: PeerId, frame: detokenizer_pb2.SubscribeResponse) -> None:
        """A frame arrived."""

    def detokenizer_down(self, detokenizer: PeerId) -> None:
        """The stream ended. Follows each ``detokenizer_up`` once."""


class Subscription:
    """One address, subscribed again and again."""

    def __init__(self, address: str, me: PeerId, owner: DetokenizerOwner, *, max_message_bytes: int) -> None:
        self.address = address
        self._me = me
        self._owner = owner
        self._max_message_bytes = max_message_bytes
        self._call: Any = None

    def give_up(self, reason: str) -> None:
        """End the stream: the detokenizer is no longer believed in. It is dialled again."""
        if self._call is not None:
            log.warning("gave up on detokenizer", address=self.address, reason=reason)
            self._call.cancel()

    async def run(self) -> None:
        """Keep subscribed until cancelled."""
        await keep_linked(self.address, self._subscribe, max_message_bytes=self._max_message_bytes)

    async def _subscribe(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        stub: Any = detokenizer_pb2_grpc.DetokenizerServiceStub(channel)
        hello = link_pb2.Hello(name=self._me.name, incarnation=self._me.incarnation, contract_version=CONTRACT_VERSION)
        self._call = stub.Subscribe(detokenizer_pb2.SubscribeRequest(hello=hello))
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT):
                first = await self._call.read()
            if first is grpc.aio.EOF or not first.HasField("welcome"):
                raise LinkRefused(await self._call.details() or "it sent no welcome")
            backoff.reset()
            await self._listen(PeerId(first.welcome.name, first.welcome.incarnation), first)
        finally:
            self._call.cancel()
            self._call = None

    async def _listen(self, detokenizer: PeerId, first: detokenizer_pb2.SubscribeResponse) -> None:
        self._owner.detokenizer_up(self, detokenizer)
        try:
            self._owner.detokenizer_frame(detokenizer, first)
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                self._owner.detokenizer_frame(detokenizer, frame)
            if await self._call.code() is not grpc.StatusCode.OK:
                raise LinkRefused(await self._call.details())
        finally:
            self._owner.detokenizer_down(detokenizer)
