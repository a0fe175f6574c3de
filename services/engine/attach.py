"""One attached peer: its commands in, its frames out, until either side gives up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any

import grpc
import structlog
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.engine.attach_links import AttachLinks, LinkWaker
from services.engine.limits import frame_limits
from services.engine.protobuf import response_of, submission_of
from services.ring.cursor import RejectedCommand
from services.ring.errors import Code, Reason, Refused, Status, invalid_field
from services.ring.identity import ENGINE, MAX_REQUEST_ID_LENGTH, PeerId, negotiate
from services.ring.roles import Role, check_name, check_role
from services.rpc.calls import end_soon
from services.rpc.handlers import Incoming
from services.rpc.message_limits import is_quick, parse
from services.rpc.protobuf import welcome_of

log = structlog.get_logger(__name__)

SUBMITTERS = frozenset({Role.PROCESSOR, Role.OPERATOR})
"""Whose certificates allow to give requests to an engine; a detokenizer's allows to stop them."""
ATTACHERS = SUBMITTERS | {Role.DETOKENIZER}
HELLO_TIMEOUT = 10.0
"""Seconds within which a peer must say who it is."""
MAX_PENDING_REJECTIONS = 1000
"""While so many wait to be written, the peer's next commands are not carried out."""
_LONGEST_GRACE = 4_000_000.0
"""Seconds, about what the field's milliseconds can say."""
SMALL_FRAME_BYTES = 4 << 10
"""So few bytes have so few fields that they are parsed in a few milliseconds at most."""
COMMANDS_PER_TURN = 256
"""So many commands are carried out before the event loop looks at anything else."""


class Attachment:
    """One Attach stream."""

    def __init__(
        self,
        hub: AttachLinks,
        me: PeerId,
        load: Callable[[], engine_pb2.Load],
        *,
        stall_timeout: float,
        max_message_bytes: int,
    ) -> None:
        """``load`` is asked every time the load is due; ``stall_timeout`` in seconds."""
        self._hub = hub
        self._me = me
        self._load = load
        self._stall_timeout = stall_timeout
        self._limits = frame_limits(hub.model)
        self._max_message_bytes = min(max_message_bytes, self._limits.max_bytes)
        self._room_for_rejections = asyncio.Event()
        self._draining_told = False

    async def run(
        self,
        incoming: Incoming,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Serve the stream; returns when the peer closed it, raises ``Refused`` when it must be ended."""
        data, hello = await self._first_frame(incoming)
        version = negotiate(hello.name, hello.incarnation, hello.min_version, hello.max_version)
        check_name(hello.name, ATTACHERS)
        waker = self._hub.attach(PeerId(hello.name, hello.incarnation))
        try:
            failure = await self._carry(data, incoming, context, waker, version)
        finally:
            self._hub.detach(waker)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # it refers to this frame: together they would stay until Python looks for cycles

    async def _carry(
        self,
        first: bytes,
        incoming: Incoming,
        context: grpc.aio.ServicerContext[Any, Any],
        waker: LinkWaker,
        version: int,
    ) -> BaseException | None:
        """Read and write until one of the two ends, or a newer stream takes this one's place; returns what was raised.

        Its peer may take nothing, so that the writer would hear of a newer one only when its time is over.
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

    async def _first_frame(self, incoming: Incoming) -> tuple[bytes, link_pb2.Hello]:
        """It may have commands, too."""
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
            hello.CopyFrom(frame.hello)  # of its own: part of a frame would keep all of it
        return data, hello

    @asynccontextmanager
    async def _parsed(self, data: bytes) -> AsyncIterator[engine_pb2.AttachRequest]:
        """A frame. What takes long is measured and parsed off the event loop, in a turn that lasts to the end."""
        work = partial(parse, engine_pb2.AttachRequest, data, self._limits)
        if _is_small(data):
            yield work()
        else:
            async with self._hub.large_frames.turn(len(data)):
                yield await self._hub.large_frames.run(work)

    async def _read(self, data: bytes | None, incoming: Incoming, waker: LinkWaker) -> None:
        ordinal, first = 0, True
        while data is not None:
            ordinal += await self._carry_out(data, waker, ordinal, may_greet=first)
            data, first = None, False  # it may be long until the next one comes
            data = await incoming.read()

    async def _carry_out(self, data: bytes, waker: LinkWaker, ordinal: int, *, may_greet: bool) -> int:
        """Carry the commands of a frame out in order; returns how many there are.

        One large frame at a time is parsed and carried out, whichever peer's, and while its peer does not read why
        commands were rejected it is bytes again: so that a hundred peers cannot have the engine hold a hundred that are
        parsed.
        """
        done = 0
        while True:
            async with self._parsed(data) as frame:
                if frame.HasField("hello") and not may_greet:
                    raise invalid_field("hello", "only the first frame may have one")
                count = len(frame.commands)
                done = await self._carry_out_from(frame, done, waker, ordinal)
                del frame
            self._hub.wake()
            if done == count:
                return count
            while waker.link.num_rejections > MAX_PENDING_REJECTIONS:
                self._room_for_rejections.clear()
                await self._room_for_rejections.wait()

    async def _carry_out_from(self, frame: engine_pb2.AttachRequest, done: int, waker: LinkWaker, ordinal: int) -> int:
        """Go on behind the commands that are done, as far as there is room for rejections; returns how many are."""
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
            if done % COMMANDS_PER_TURN == 0:
                self._hub.wake()
                await asyncio.sleep(0)
        return done

    def _command(self, command: engine_pb2.Command, peer: PeerId, ordinal: int) -> None:
        board = self._hub.switchboard
        match command.WhichOneof("command"):
            case "submit":
                check_role("to submit requests", SUBMITTERS)
                self._check_model(command.submit)
                board.submit(peer, submission_of(command.submit, self._hub.model, time.monotonic()), ordinal)
            case "cancel":
                board.cancel(peer, command.cancel.request_id, command.cancel.epoch)
            case "stop":
                stop = command.stop
                board.stop(peer, stop.request_id, stop.epoch, stop.choice, stop.position)
            case "redirect":
                redirect = command.redirect
                delivered = {one.choice: one.count for one in redirect.delivered}
                board.redirect(peer, redirect.request_id, redirect.epoch, redirect.deliver_to, delivered)
            case "done":
                board.done(peer, command.done.request_id, command.done.epoch)
            case _:
                raise invalid_field("command", "none is set: expected submit, cancel, stop, redirect or done")

    def _check_model(self, submit: engine_pb2.Submit) -> None:
        """What was begun on one model does not go on with another."""
        if submit.model_digest not in ("", self._hub.model_digest):
            problem = f"{submit.model_digest[:80]!r} is not served here, but {self._hub.model_digest!r}"
            raise Refused(
                Code.FAILED_PRECONDITION,
                f"model_digest: {problem}",
                reason=Reason.MODEL_GONE,
                field="model_digest",
            )

    async def _write(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        waker: LinkWaker,
        version: int,
    ) -> None:
        welcome = welcome_of(self._me, version, self._max_message_bytes, ENGINE)
        await self._send(context, engine_pb2.AttachResponse(welcome=welcome))
        while True:
            await waker.event.wait()
            waker.event.clear()
            while (response := self._next(waker)) is not None:
                await self._send(context, response)
            if self._hub.failure is not None:
                raise Refused(Code.INTERNAL, f"{self._hub.failure}, and the engine ends")

    def _next(self, waker: LinkWaker) -> engine_pb2.AttachResponse | None:
        frame = waker.link.take()
        response = None if frame is None else response_of(frame)
        self._room_for_rejections.set()
        if waker.load_due:
            waker.load_due = False
            response = response or engine_pb2.AttachResponse()
            response.load.CopyFrom(self._load())
        if self._hub.drain_grace is not None and not self._draining_told:
            self._draining_told = True
            response = response or engine_pb2.AttachResponse()
            response.draining.grace_ms = round(min(self._hub.drain_grace, _LONGEST_GRACE) * 1000)
        return response

    async def _send(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        response: engine_pb2.AttachResponse,
    ) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout):
                await context.write(response)
        except TimeoutError:
            end_soon()
            message = f"the peer took nothing for {self._stall_timeout:g} s"
            raise Refused(Code.RESOURCE_EXHAUSTED, message, reason=Reason.STALLED) from None


def _no_hello() -> Refused:
    return invalid_field("hello", "absent: the first frame must say who attaches")


def _is_small(data: bytes) -> bool:
    """Whether a frame is parsed on the event loop: it has few bytes, or few fields, as a request with a long prompt."""
    return len(data) <= SMALL_FRAME_BYTES or is_quick(engine_pb2.AttachRequest, data)


async def _end_superseded(waker: LinkWaker) -> None:
    await waker.superseded.wait()
    raise _superseded()


def _superseded() -> Refused:
    end_soon()
    return Refused(Code.ABORTED, "a newer stream of the same peer took this one's place")


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
