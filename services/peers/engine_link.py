"""The dialling end of ``EngineService.Attach``: one engine's address, kept attached for as long as the process lives.

Commands that gather while a write is under way leave together in the next frame. When the stream ends, from
whatever cause, the owner is told once, and the address is dialled again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

import grpc
import structlog
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.peers.redial import Backoff, LinkRefused, PeerDedup, maintain_link, parse_welcome
from services.ring.identity import PeerId
from services.rpc.protobuf import hello_message
from services.security.credentials import PLAINTEXT, PeerCredentials

log = structlog.get_logger(__name__)

WELCOME_TIMEOUT = 10.0
MAX_FRAME_BYTES = 128 << 10
"""Commands are small, and an engine carries out one frame at a time."""
_FRAME_BYTES = 64
"""What the frame around a single command may add to it."""


class EngineOwner(Protocol):
    """Whoever attached: a processor or a detokenizer."""

    async def prepare(self, stub: Any) -> engine_pb2.GetModelResponse:
        """Before attaching: learn who the engine is and what it serves. Raises ``LinkRefused``."""

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """The engine said Welcome: commands may be sent. ``model`` is what ``prepare`` learned of it.

        Raises ``LinkRefused`` if that fits no longer; then it was never up.
        """

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None:
        """A frame arrived."""

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        """The stream ended; everything that came with it is void. Follows each ``engine_up`` once."""


class EngineLink:
    """One address, attached again and again."""

    def __init__(
        self,
        address: str,
        me: PeerId,
        owner: EngineOwner,
        dedup: PeerDedup,
        *,
        stall_timeout: float,
        max_message_bytes: int,
        credentials: PeerCredentials = PLAINTEXT,
        server_name: str | None = None,
    ) -> None:
        """``dedup`` is shared by the links of the process.

        ``stall_timeout`` in seconds: an engine that takes no command for this long is given up.
        """
        self.address = address
        self._me = me
        self._owner = owner
        self._claims = dedup
        self._stall_timeout = stall_timeout
        self._max_message_bytes = max_message_bytes
        self._credentials = credentials
        self._server_name = server_name
        self._commands: list[bytes] = []
        """Frames of one command each, serialized: one behind the other they are a frame of all of them."""
        self._wake = asyncio.Event()
        self._call: Any = None
        self.up = False
        self.max_command_bytes = 0
        """The largest command that the engine takes; known once it is up."""

    def send(self, commands: Iterable[engine_pb2.Command]) -> None:
        """Send commands in order; they are dropped with the stream if it ends first."""
        if self.up:
            self._commands += (engine_pb2.AttachRequest(commands=(one,)).SerializeToString() for one in commands)
            self._wake.set()

    def give_up(self, reason: str) -> None:
        """End the stream: the engine is no longer believed in. It is dialled again."""
        if self._call is not None:
            log.warning("gave up on engine", address=self.address, reason=reason)
            self._call.cancel()

    async def run(self) -> None:
        """Keep attached until cancelled."""
        await maintain_link(
            self.address,
            self._attach,
            max_message_bytes=self._max_message_bytes,
            credentials=self._credentials,
            server_name=self._server_name,
        )

    async def _attach(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        model = await self._owner.prepare(stub)
        with self._claims.claim(PeerId(model.name, model.incarnation), self.address):
            await self._attach_to(model, stub, backoff)

    async def _attach_to(self, model: engine_pb2.GetModelResponse, stub: Any, backoff: Backoff) -> None:
        engine = PeerId(model.name, model.incarnation)
        self._call = stub.Attach()
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT):
                await self._call.write(engine_pb2.AttachRequest(hello=hello_message(self._me)))
                first = await self._call.read()
            if first is grpc.aio.EOF or not first.HasField("welcome"):
                raise LinkRefused("it sent no welcome")
            if engine != (answered := parse_welcome(first.welcome)):
                raise LinkRefused(f"{answered.name} answered in the place of {engine.name} or of an earlier life")
            backoff.reset()
            await self._carry(engine, model, first)
        finally:
            self._call.cancel()
            self._call = None

    async def _carry(
        self, engine: PeerId, model: engine_pb2.GetModelResponse, first: engine_pb2.AttachResponse
    ) -> None:
        self.max_command_bytes = first.welcome.max_message_bytes - _FRAME_BYTES
        self._owner.engine_up(self, engine, model)
        self._commands, self.up = [], True
        writer = asyncio.create_task(self._write())
        writer.add_done_callback(self._writer_ended)
        try:
            self._owner.engine_frame(self, engine, first)
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                self._owner.engine_frame(self, engine, frame)
        finally:
            self.up = False
            writer.cancel()
            self._owner.engine_down(self, engine)
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._commands:
                batch = self._next_batch()
                try:
                    async with asyncio.timeout(self._stall_timeout):
                        await self._call.write(engine_pb2.AttachRequest.FromString(b"".join(batch)))
                except TimeoutError:
                    self.give_up(f"it took no command for {self._stall_timeout:g} s")
                    return

    def _writer_ended(self, writer: asyncio.Task[None]) -> None:
        """A link over which nothing can be sent is none."""
        error = None if writer.cancelled() else writer.exception()
        if error is not None and not isinstance(error, grpc.RpcError | asyncio.InvalidStateError):
            self.give_up(f"commands cannot be written: {error!r}")  # those: the call ended, and the reader learns why

    def _next_batch(self) -> list[bytes]:
        size = 0
        for index, command in enumerate(self._commands):
            size += len(command)
            if size > MAX_FRAME_BYTES and index > 0:
                batch, self._commands = self._commands[:index], self._commands[index:]
                return batch
        batch, self._commands = self._commands, []
        return batch
