"""The dialling end of ``EngineService.Attach``: stays attached to one engine's address for the life of the process.

Commands that accumulate during a write are sent together in the next frame. When the stream ends, for any reason,
``engine_down`` is called once, and the address is dialled again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import grpc
import structlog
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from services.common.links.channels import Endpoint
from services.common.links.discovery import PeerDedup
from services.common.links.media_uploads import MediaUploads
from services.common.links.redial import Backoff, LinkRefused, maintain_link, parse_welcome
from services.common.links.zone import zone_of
from services.common.rpc.shared_messages import hello_message
from services.ring.identity import PeerId
from text_core.pictures.prepared import PreparedItem

log = structlog.get_logger(__name__)

WELCOME_TIMEOUT = 10.0
MAX_FRAME_BYTES = 128 << 10
"""Limit on a frame of several commands: an engine executes one frame at a time."""
SOON = 0.005
"""Seconds that a command which nothing waits for may wait for others, to go in one frame with them."""
_FRAME_BYTES = 64
"""Bytes that the frame around a single command may add."""


class EngineOwner(Protocol):
    """Receives the events of links to engines: the processor's ``LinkEvents``, the detokenizer's ``Engines``."""

    async def prepare(self, stub: Any) -> engine_pb2.GetModelResponse:
        """Called before attaching; returns the engine's identity and model. Raises ``LinkRefused``."""

    def engine_up(self, link: EngineLink, engine: PeerId, model: engine_pb2.GetModelResponse) -> None:
        """The engine answered Welcome: commands may be sent. ``model``: the result of ``prepare``.

        Raises ``LinkRefused`` if the model is no longer usable; then ``engine_down`` is not called.
        """

    def engine_frame(self, link: EngineLink, engine: PeerId, frame: engine_pb2.AttachResponse) -> None: ...

    def engine_down(self, link: EngineLink, engine: PeerId) -> None:
        """The stream ended: drop all state of the link. Called once after each ``engine_up``."""


class EngineLink:
    """Keeps this process attached to the engine at one address."""

    def __init__(
        self,
        endpoint: Endpoint,
        me: PeerId,
        owner: EngineOwner,
        dedup: PeerDedup,
        *,
        stall_timeout: float,
        capabilities: Sequence[str] = (),
    ) -> None:
        """``dedup`` is shared by all links of the process.

        ``stall_timeout``: seconds after which an engine that reads no commands is given up. ``capabilities``: what this
        process can do beyond the contract's version.
        """
        self.address = endpoint.address
        self._endpoint = endpoint
        self._me = me
        self._owner = owner
        self._dedup = dedup
        self._stall_timeout = stall_timeout
        self._capabilities = capabilities
        self._commands: list[bytes] = []
        """Serialized frames of one command each; concatenated, they form one frame with all commands."""
        self._later: list[bytes] = []
        """The same, of commands that go behind others."""
        self.media = MediaUploads()
        """Pictures, which go between other commands."""
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        """Wakes the writer for commands that may wait."""
        self._call: Any = None
        self.up = False
        self.stub: Any = None
        """For calls other than the stream; None while there is no connection."""
        self.max_command_bytes = 0
        """The largest command that the engine accepts; known once the link is up."""
        self.zone: str | None = None
        """The engine's zone; known once the link is up."""

    def send(self, commands: Iterable[engine_pb2.Command], *, hurries: bool = True) -> None:
        """Send commands in order; dropped if the stream ends first.

        Unless it ``hurries``, behind those that do, within ``SOON``.
        """
        if not self.up:
            return
        packed = [engine_pb2.AttachRequest(commands=(one,)).SerializeToString() for one in commands]
        if hurries:
            self._commands += packed
            self._wake.set()
            return
        self._later += packed
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON, self._wake.set)

    def submit(self, submit: engine_pb2.Submit, pictures: Sequence[PreparedItem]) -> None:
        """Send a Submit, behind those of its ``pictures`` that the engine lacks; dropped if the stream ends first."""
        command = engine_pb2.Command(submit=submit)
        if self.media.holds(picture.digest for picture in pictures):
            self.send((command,))
        elif self.up:
            frame = engine_pb2.AttachRequest(commands=(command,)).SerializeToString()
            self.media.add(submit.request_id, pictures, frame)
            self._wake.set()

    def give_up(self, reason: str) -> None:
        """End the stream because the engine seems dead; it is dialled again."""
        if self._call is not None:
            log.warning("gave up on engine", address=self.address, reason=reason)
            self._call.cancel()

    async def run(self) -> None:
        """Keep attached until cancelled."""
        await maintain_link(self._endpoint, self._attach)

    async def _attach(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        model = await self._owner.prepare(stub)
        with self._dedup.claim(PeerId(model.name, model.incarnation), self.address):
            self.stub = stub
            try:
                await self._attach_to(model, stub, backoff)
            finally:
                self.stub = None

    async def _attach_to(self, model: engine_pb2.GetModelResponse, stub: Any, backoff: Backoff) -> None:
        engine = PeerId(model.name, model.incarnation)
        self._call = stub.Attach()
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT):
                await self._call.write(engine_pb2.AttachRequest(hello=hello_message(self._me, self._capabilities)))
                first = await self._call.read()
            if first is grpc.aio.EOF or not first.HasField("welcome"):
                raise LinkRefused("it did not send a Welcome first")
            if engine != (answered := parse_welcome(first.welcome)):
                expected = f"expected {engine.name} with incarnation {engine.incarnation}"
                raise LinkRefused(f"{answered.name} with incarnation {answered.incarnation} answered: {expected}")
            self.zone = await zone_of(self._call)
            backoff.reset()
            await self._run_stream(engine, model, first)
        finally:
            self._call.cancel()
            self._call = None

    async def _run_stream(
        self, engine: PeerId, model: engine_pb2.GetModelResponse, first: engine_pb2.AttachResponse
    ) -> None:
        self.max_command_bytes = first.welcome.max_message_bytes - _FRAME_BYTES
        self.media.clear()
        self._owner.engine_up(self, engine, model)
        self._commands, self._later, self.up = [], [], True
        writer = asyncio.create_task(self._write())
        writer.add_done_callback(self._writer_ended)
        try:
            self._owner.engine_frame(self, engine, first)
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                self._owner.engine_frame(self, engine, frame)
        finally:
            self.up = False
            writer.cancel()
            self.media.clear()
            self._owner.engine_down(self, engine)
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._commands += self._later
            self._later = []
            while self._commands or self.media:
                frames = [b"".join(self._next_batch())] if self._commands else []
                if (frame := self.media.next()) is not None:  # one after each batch: neither waits for all of the other
                    frames.append(frame)
                try:
                    for frame in frames:
                        async with asyncio.timeout(self._stall_timeout):
                            await self._call.write(engine_pb2.AttachRequest.FromString(frame))
                except TimeoutError:
                    self.give_up(f"it read no command for {self._stall_timeout:g} s")
                    return

    def _writer_ended(self, writer: asyncio.Task[None]) -> None:
        """Give the link up if its writer failed: nothing more can be sent over it."""
        error = None if writer.cancelled() else writer.exception()
        # After the excepted errors, the call has ended and its reader gets the reason.
        if error is not None and not isinstance(error, grpc.RpcError | asyncio.InvalidStateError):
            self.give_up(f"commands cannot be written: {error!r}")

    def _next_batch(self) -> list[bytes]:
        size = count = 0
        for command in self._commands:
            size += len(command)
            if size > MAX_FRAME_BYTES and count > 0:
                break
            count += 1
        batch, self._commands = self._commands[:count], self._commands[count:]
        return batch
