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
from services.runtime.channels import open_channel

log = structlog.get_logger(__name__)

WELCOME_TIMEOUT = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


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
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            reason = "it ended the stream"
            try:
                async with open_channel(self.address, max_message_bytes=self._max_message_bytes) as channel:
                    await self._subscribe(channel, backoff)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                reason = (
                    error.details() or str(error.code()) if isinstance(error, grpc.aio.AioRpcError) else "no welcome"
                )
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                reason = "given up"
            log.info("detokenizer not subscribed", address=self.address, reason=reason)
            await asyncio.sleep(backoff.next())

    async def _subscribe(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        stub: Any = detokenizer_pb2_grpc.DetokenizerServiceStub(channel)
        hello = link_pb2.Hello(name=self._me.name, incarnation=self._me.incarnation, contract_version=CONTRACT_VERSION)
        self._call = stub.Subscribe(detokenizer_pb2.SubscribeRequest(hello=hello))
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT):
                first = await self._call.read()
            if first is grpc.aio.EOF or not first.HasField("welcome"):
                return
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
        finally:
            self._owner.detokenizer_down(detokenizer)
