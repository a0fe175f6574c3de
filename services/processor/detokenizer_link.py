"""The link to a detokenizer: keeps a subscription to one address for the life of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

import grpc
from ringline.detokenizer.v1 import detokenizer_pb2, detokenizer_pb2_grpc

from services.common.links.channels import Endpoint
from services.common.links.discovery import PeerDedup
from services.common.links.redial import Backoff, LinkRefused, maintain_link, parse_welcome
from services.common.links.zone import zone_of
from services.common.rpc.shared_messages import hello_message
from services.ring.identity import PeerId

WELCOME_TIMEOUT = 10.0
DUPLICATE_INTERVAL = 0.5
"""Seconds between checks whether a detokenizer is still linked through another address."""


class DetokenizerOwner(Protocol):
    """Receives the events of links to detokenizers."""

    def detokenizer_up(
        self, detokenizer: PeerId, address: str, capabilities: Iterable[str] = (), zone: str | None = None
    ) -> None: ...

    def detokenizer_frame(self, detokenizer: PeerId, frame: detokenizer_pb2.SubscribeResponse) -> None: ...

    def detokenizer_down(self, detokenizer: PeerId) -> None:
        """The stream ended. Called once after each ``detokenizer_up``."""


class DetokenizerLink:
    """Subscribes to the detokenizer at one address, and again whenever the stream ends."""

    def __init__(self, endpoint: Endpoint, me: PeerId, owner: DetokenizerOwner, dedup: PeerDedup) -> None:
        """``dedup`` is shared by the links of the process."""
        self.address = endpoint.address
        self._endpoint = endpoint
        self._me = me
        self._owner = owner
        self._dedup = dedup
        self._found: PeerId | None = None
        """The detokenizer last seen at this address."""
        self.up = False

    async def run(self) -> None:
        """Keep subscribed until cancelled."""
        await maintain_link(self._endpoint, self._subscribe)

    async def _subscribe(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        # Subscribing is the only way to learn which detokenizer is there, but would end its stream through the other
        # address.
        while self._found is not None and self._dedup.has_another(self._found, self.address):  # noqa: ASYNC110
            await asyncio.sleep(DUPLICATE_INTERVAL)
        stub: Any = detokenizer_pb2_grpc.DetokenizerServiceStub(channel)
        call = stub.Subscribe(detokenizer_pb2.SubscribeRequest(hello=hello_message(self._me)))
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT):
                first = await call.read()
            if first is grpc.aio.EOF or not first.HasField("welcome"):
                raise LinkRefused("it did not send a Welcome first")
            self._found = parse_welcome(first.welcome)
            with self._dedup.claim(self._found, self.address):
                backoff.reset()
                await self._listen(call, self._found, first)
        finally:
            call.cancel()

    async def _listen(self, call: Any, detokenizer: PeerId, first: detokenizer_pb2.SubscribeResponse) -> None:
        self._owner.detokenizer_up(detokenizer, self.address, first.welcome.capabilities, await zone_of(call))
        self.up = True
        try:
            self._owner.detokenizer_frame(detokenizer, first)
            while (frame := await call.read()) is not grpc.aio.EOF:
                self._owner.detokenizer_frame(detokenizer, frame)
        finally:
            self.up = False
            self._owner.detokenizer_down(detokenizer)
