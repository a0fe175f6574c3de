"""One Attach stream: the peer's commands in, output frames out, until either side ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice

import structlog
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.common.rpc.handlers import Context, RequestStream
from services.common.rpc.message_limits import is_cheap_to_parse, parse
from services.common.rpc.open_calls import end_call_soon
from services.common.rpc.output_stream import write_in_time
from services.common.rpc.shared_messages import welcome_message
from services.engine.adapters.messages import changes_message, no_adapter
from services.engine.async_engine import AsyncEngine, LinkWaker
from services.engine.engine_messages import header_of, no_picture, response_of, submission_of
from services.engine.media_store import PictureReceiver
from services.engine.submit_limits import frame_limits
from services.ring.errors import Code, Reason, Refused, Status, invalid_field
from services.ring.identity import ADAPTERS, MAX_REQUEST_ID_LENGTH, MEDIA, PeerId, check_requires, negotiate
from services.ring.outbound_link import RejectedCommand
from services.ring.roles import Role, check_name, check_role, has_role

log = structlog.get_logger(__name__)

SUBMITTERS = frozenset({Role.PROCESSOR, Role.OPERATOR})
"""Roles that may submit requests; a detokenizer may only stop them."""
ATTACHERS = SUBMITTERS | {Role.DETOKENIZER}
HELLO_TIMEOUT = 10.0
"""Seconds that a peer has to send its Hello."""
MAX_PENDING_REJECTIONS = 1000
"""While more rejections than this wait to be written, the peer's commands are not executed."""
_LONGEST_GRACE = 4_000_000.0
"""Seconds; about the maximum of the message's field, which is in milliseconds."""
SMALL_FRAME_BYTES = 4 << 10
"""Frames up to this size are parsed on the event loop: it takes a few milliseconds at most."""
COMMANDS_PER_TURN = 256
"""Commands executed before the event loop runs other tasks."""
SMALL_CHUNK_BYTES = 32 << 10
"""After a larger piece of a picture, which takes tenths of a millisecond to hash, the event loop runs other tasks."""


class Attachment:
    """One Attach stream."""

    def __init__(
        self,
        engine: AsyncEngine,
        me: PeerId,
        load: Callable[[], engine_pb2.Load],
        *,
        stall_timeout: float,
        max_message_bytes: int,
    ) -> None:
        """``load`` is called for every heartbeat; ``stall_timeout``: seconds that one write may take."""
        self._engine = engine
        self._me = me
        self._load = load
        self._stall_timeout = stall_timeout
        self._limits = frame_limits(engine.model)
        self._max_message_bytes = min(max_message_bytes, self._limits.max_bytes)
        self._pictures = None if engine.media is None else PictureReceiver(engine.media)
        self._room_for_rejections = asyncio.Event()
        self._draining_told = False

    async def run(self, incoming: RequestStream, context: Context) -> None:
        """Serve the stream. Returns when the peer has closed it; raises ``Refused`` with the status that ends it."""
        data, hello = await self._first_frame(incoming)
        version = negotiate(hello.name, hello.incarnation, hello.min_version, hello.max_version)
        check_name(hello.name, ATTACHERS)
        waker = self._engine.attach(PeerId(hello.name, hello.incarnation))
        if self._engine.media is not None and has_role(SUBMITTERS):
            waker.media = self._engine.media.listen()
        if self._engine.adapters is not None and ADAPTERS in hello.capabilities and has_role(SUBMITTERS):
            waker.adapters = self._engine.adapters.registry.listen()
        try:
            failure = await self._serve(data, incoming, context, waker, version)
        finally:
            if self._pictures is not None:
                self._pictures.close()
            self._engine.detach(waker)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # breaks its reference cycle with this stack frame

    async def _serve(
        self, first: bytes, incoming: RequestStream, context: Context, waker: LinkWaker, version: int
    ) -> BaseException | None:
        """Read and write until either ends or a newer stream supersedes this one; returns the exception, if any.

        A separate task waits for the newer stream, because a peer that does not read may block the writer.
        """
        tasks = (
            asyncio.create_task(self._read(first, incoming, waker)),
            asyncio.create_task(self._write(context, waker, version)),
            asyncio.create_task(_end_superseded(waker)),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(filter(None, (task.exception() for task in done)), None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _first_frame(self, incoming: RequestStream) -> tuple[bytes, link_pb2.Hello]:
        """The first frame and its Hello. The frame stays bytes, because it may also have commands."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                data = await incoming.read()
        except TimeoutError:
            raise Refused(Code.DEADLINE_EXCEEDED, f"no hello within {HELLO_TIMEOUT:g} s") from None
        if data is None:
            raise _no_hello()
        async with self._parsed(data) as frame:
            if not frame.HasField("hello"):
                raise _no_hello()
            hello = link_pb2.Hello()
            hello.CopyFrom(frame.hello)  # a submessage would keep the whole frame in memory
        return data, hello

    @asynccontextmanager
    async def _parsed(self, data: bytes) -> AsyncIterator[engine_pb2.AttachRequest]:
        """Parse a frame. A large one is measured and parsed off the event loop, in a turn held until the block ends."""
        work = partial(parse, engine_pb2.AttachRequest, data, self._limits)
        # Few bytes or few fields, such as one request with a long prompt, are parsed on the event loop.
        if len(data) <= SMALL_FRAME_BYTES or is_cheap_to_parse(engine_pb2.AttachRequest, data):
            yield work()
        else:
            async with self._engine.large_frames.turn(len(data)):
                yield await self._engine.large_frames.run(work)

    async def _read(self, data: bytes | None, incoming: RequestStream, waker: LinkWaker) -> None:
        ordinal, first = 0, True
        while data is not None:
            ordinal += await self._execute(data, waker, ordinal, may_greet=first)
            data, first = None, False  # free the frame: the next one may take long to arrive
            data = await incoming.read()

    async def _execute(self, data: bytes, waker: LinkWaker, ordinal: int, *, may_greet: bool) -> int:
        """Execute the commands of a frame in order; returns how many there are.

        Across all peers, one large frame at a time is held in parsed form. While a peer does not read its rejections,
        its frame is kept as bytes and parsed again later. So a hundred peers cannot make the engine hold a hundred
        parsed frames.
        """
        done = 0
        while True:
            async with self._parsed(data) as frame:
                if frame.HasField("hello") and not may_greet:
                    raise invalid_field("hello", "only the first frame may have one")
                count = len(frame.commands)
                done = await self._execute_from(frame, done, waker, ordinal)
                del frame
            self._engine.wake_soon()
            if done == count:
                return count
            while waker.link.num_rejections > MAX_PENDING_REJECTIONS:
                self._room_for_rejections.clear()
                await self._room_for_rejections.wait()

    async def _execute_from(self, frame: engine_pb2.AttachRequest, done: int, waker: LinkWaker, ordinal: int) -> int:
        """Continue after ``done`` commands until too many rejections are pending; returns how many are done now."""
        for command in islice(frame.commands, done, None):
            if waker.superseded.is_set():
                raise _superseded()
            if waker.link.num_rejections > MAX_PENDING_REJECTIONS:
                break
            done += 1
            try:
                self._command(command, waker.link.peer, ordinal + done)
            except Refused as refused:
                waker.link.reject(_rejection(command, ordinal + done, refused.status))
            if done % COMMANDS_PER_TURN == 0 or len(command.media.data) > SMALL_CHUNK_BYTES:
                self._engine.wake_soon()
                await asyncio.sleep(0)
        return done

    def _command(self, command: engine_pb2.Command, peer: PeerId, ordinal: int) -> None:
        registry = self._engine.registry
        match command.WhichOneof("command"):
            case "submit":
                check_role("to submit requests", SUBMITTERS)
                self._check_model(command.submit)
                engine = self._engine
                find = no_picture if self._pictures is None else self._pictures.find
                adapter = no_adapter if engine.adapters is None else engine.adapters.registry.wanted
                submission = submission_of(
                    command.submit, engine.model, time.monotonic(), engine.capabilities, find, adapter
                )
                registry.submit(peer, submission, ordinal)
            case "media":
                check_role("to send pictures", SUBMITTERS)
                self._receive(command.media)
            case "cancel":
                registry.cancel(peer, command.cancel.request_id, command.cancel.epoch)
            case "stop":
                stop = command.stop
                registry.stop(peer, stop.request_id, stop.epoch, stop.choice, stop.position)
            case "redirect":
                redirect = command.redirect
                delivered = {one.choice: one.count for one in redirect.delivered}
                registry.redirect(peer, redirect.request_id, redirect.epoch, redirect.deliver_to, delivered)
            case "done":
                registry.done(peer, command.done.request_id, command.done.epoch)
            case _:
                raise invalid_field("command", "none is set: expected submit, cancel, stop, redirect, done or media")

    def _receive(self, chunk: engine_pb2.MediaChunk) -> None:
        """A piece of a picture."""
        check_requires([MEDIA], self._engine.capabilities)
        assert self._pictures is not None
        if chunk.HasField("header"):
            self._pictures.begin(chunk.digest, header_of(chunk.header))
        self._pictures.add(chunk.digest, chunk.data)

    def _check_model(self, submit: engine_pb2.Submit) -> None:
        """A request that began on one model must not continue on another."""
        if submit.model_digest not in ("", self._engine.model_digest):
            problem = f"{submit.model_digest[:80]!r} is not served here: expected {self._engine.model_digest!r}"
            message = f"model_digest: {problem}"
            raise Refused(Code.FAILED_PRECONDITION, message, reason=Reason.MODEL_GONE, field="model_digest")

    async def _write(self, context: Context, waker: LinkWaker, version: int) -> None:
        send = partial(write_in_time, context, stall_timeout=self._stall_timeout, reader="peer")
        welcome = welcome_message(self._me, version, self._max_message_bytes, self._engine.capabilities)
        await send(engine_pb2.AttachResponse(welcome=welcome))
        while True:
            await waker.event.wait()
            waker.event.clear()
            while (response := self._next(waker)) is not None:
                await send(response)
            if self._engine.failure is not None:
                raise Refused(Code.INTERNAL, f"{self._engine.failure}: this engine is stopping; use another")

    def _next(self, waker: LinkWaker) -> engine_pb2.AttachResponse | None:
        frame = waker.link.take()
        response = None if frame is None else response_of(frame)
        self._room_for_rejections.set()
        if waker.load_due:
            waker.load_due = False
            response = response or engine_pb2.AttachResponse()
            response.load.CopyFrom(self._load())
        if waker.media:
            response = response or engine_pb2.AttachResponse()
            held, dropped = waker.media.take()
            response.media.MergeFrom(engine_pb2.MediaChanges(held=held, dropped=dropped))
        if waker.adapters and self._engine.adapters is not None:
            response = response or engine_pb2.AttachResponse()
            response.adapters.CopyFrom(changes_message(self._engine.adapters.registry, waker.adapters))
        if self._engine.drain_grace is not None and not self._draining_told:
            self._draining_told = True
            response = response or engine_pb2.AttachResponse()
            response.draining.grace_ms = round(min(self._engine.drain_grace, _LONGEST_GRACE) * 1000)
        return response


def _no_hello() -> Refused:
    return invalid_field("hello", "absent: the first frame must say who attaches")


async def _end_superseded(waker: LinkWaker) -> None:
    await waker.superseded.wait()
    raise _superseded()


def _superseded() -> Refused:
    end_call_soon()
    return Refused(Code.ABORTED, "superseded by a newer stream of the same peer")


def _rejection(command: engine_pb2.Command, ordinal: int, status: Status) -> RejectedCommand:
    kind = command.WhichOneof("command")
    subject = getattr(command, kind) if kind is not None else None
    request_id = getattr(subject, "request_id", "")
    return RejectedCommand(
        request_id=request_id if len(request_id) <= MAX_REQUEST_ID_LENGTH else "",
        epoch=getattr(subject, "epoch", 0),
        in_reply_to=ordinal,
        status=status,
    )
