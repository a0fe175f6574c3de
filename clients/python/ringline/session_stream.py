"""One Session stream: requests and cancels go out through one writer, responses come in through one reader.

The reader never pauses, so a slow consumer does not stall the others: events wait in memory until taken, at most one
answer per consumer. The server's limit of live requests bounds what goes out.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ringline.content_parts import has_pictures
from ringline.errors import Cancelled, DeadlineExceeded, ProtocolError, RingError, Unavailable, from_lost_call, invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.results import Event
from ringline.retry import Deadline
from ringline.retrying_request import RetryingRequest
from ringline.server_pool import Server, ServerPool

SessionCall = grpc.aio.StreamStreamCall[bytes, pb.SessionResponse]
"""Its requests are packed already."""

_FRAME_BYTES = 512
"""Bytes that the request id, the timeout and the frame may add to a request."""
_GENERATE = pb.SessionRequest.DESCRIPTOR.fields_by_name["generate"].number << 3 | 2
_FIRST_FRAME_SECONDS = 10.0
_log = logging.getLogger("ringline")


class Attempt:
    """One attempt at one request on one Session stream; holds its events until taken."""

    def __init__(
        self, retrying: RetryingRequest, request_id: str, ordinal: int, abandon: Callable[[Attempt], None]
    ) -> None:
        """``ordinal``: of the frame that begins it. ``abandon`` tells the server that nobody waits for the answer."""
        self.request_id = request_id
        self.ordinal = ordinal
        self.error: RingError | None = None
        self.retrying = retrying
        self._abandon = abandon
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Whether no event will be added."""
        return self.error is not None or self.retrying.reader.done

    async def next_event(self) -> Event | None:
        """The next event; None after the last. Raises the error that ended the attempt."""
        while not self._events:
            if self.over:
                if self.error is not None:
                    raise self.error
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()

    def give_up_after(self, seconds: float) -> None:
        """End the attempt on this side after ``seconds`` if the server has not ended it."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def take(self, response: pb.GenerateResponse) -> bool:
        """Read a response; returns whether it is the request's last."""
        try:
            events = self.retrying.read(response)
        except RingError as error:
            self.error = self.error or error
            self._wake()
            return True
        done = self.retrying.reader.done
        if self.error is None:  # else nobody waits for the answer
            self._events.extend(events)
            if done:
                self.error = self.retrying.reader.failure
            self._wake()
        return done

    def fail(self, cause: RingError) -> None:
        """End the attempt with an error, unless it has ended."""
        if not self.over:
            self.error = self.retrying.reader.lost(cause) or self.retrying.reader.failure
        self._wake()

    def cancel(self) -> None:
        """End the attempt and cancel it at the server, unless it has ended."""
        if not self.over:
            self.fail(Cancelled("the request was cancelled"))
            self._abandon(self)

    def _expire(self) -> None:
        if not self.over:
            self.fail(DeadlineExceeded("the timeout passed, and the server did not end the request"))
            self._abandon(self)

    def _wake(self) -> None:
        if self.over and self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SessionStream:
    """One Session stream, from its first frame (the limits) to its end."""

    def __init__(
        self,
        call: SessionCall,
        pool: ServerPool[Any],
        server: Server[Any],
        first: pb.SessionResponse,
        names: Iterator[str],
    ) -> None:
        """``first``: the first frame, with the limits. ``names``: ids for requests that have none.

        Reports to ``pool`` the successes and failures of ``server``, the stream's peer.
        """
        self.server = server
        self._pool = pool
        limits = first.limits
        self._call = call
        self._names = names
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_live_requests)
        self._live: dict[str, Attempt] = {}
        self._unanswered: dict[int, Attempt] = {}
        """By the ordinal of the first frame: the answer to a refused frame may name nothing else."""
        self._ordinal = 0
        self._outbox: deque[bytes] = deque()
        """Packed frames."""
        self._outgoing = asyncio.Event()
        self._draining = first.HasField("draining")
        self._ended = False
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    @classmethod
    async def open(
        cls, call: SessionCall, pool: ServerPool[Any], server: Server[Any], names: Iterator[str]
    ) -> SessionStream:
        """Wait for the server's first frame, with its limits. Raises RingError if it is refused, lost or invalid."""
        try:
            async with asyncio.timeout(_FIRST_FRAME_SECONDS):
                first = await call.read()
        except grpc.RpcError as failure:
            raise from_lost_call(failure) from None
        except TimeoutError:
            call.cancel()
            raise Unavailable(f"the server did not open a session within {_FIRST_FRAME_SECONDS:g} s") from None
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not isinstance(first, pb.SessionResponse):
            raise Unavailable("the server ended the session before its first frame")
        if not first.limits.max_live_requests:
            call.cancel()
            raise ProtocolError("the server broke the protocol: the session's first frame has no limits")
        pool.succeeded(server)
        return cls(call, pool, server, first, names)

    @property
    def usable(self) -> bool:
        """Whether the stream takes new requests."""
        return not self._draining and not self._ended

    @property
    def ended(self) -> bool:
        """Whether the stream has ended."""
        return self._ended

    async def begin(self, retrying: RetryingRequest) -> Attempt | None:
        """Send a request once the number of live ones is below the limit.

        Returns None if the server is draining by then: another stream must take the request. Raises Unavailable if the
        stream ends first, InvalidRequest for a request too large or an id in use.
        """
        await self._wait_for_slot(retrying.deadline)
        try:
            drains = self._is_draining()
            if not drains:
                request, packed = await _next_request(retrying)
                drains = self._is_draining()  # by now
            if drains:
                self._slots.release()
                return None
            backstop = retrying.deadline.backstop()
            self._check_size(request, len(packed))
            frame = _frame_of(packed, self._claim_id(request))
        except BaseException:  # whoever is cancelled while pictures are packed gives the place back, too
            self._slots.release()
            raise
        del packed
        ordinal = self._send(frame)
        attempt = Attempt(retrying, request.request_id, ordinal, self._abandon)
        if backstop is not None:
            attempt.give_up_after(backstop)
        self._live[attempt.request_id] = self._unanswered[attempt.ordinal] = attempt
        return attempt

    def _is_draining(self) -> bool:
        """Whether another stream must take new requests. Raises Unavailable if this one has ended."""
        if self._ended:
            raise Unavailable("the session ended before the request was sent")
        return self._draining

    async def close(self) -> None:
        """End every live request and the stream."""
        self._end(Cancelled("the session was closed"))
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait_for_slot(self, deadline: Deadline) -> None:
        left = deadline.remaining()
        try:
            async with asyncio.timeout(left):
                await self._slots.acquire()
        except TimeoutError:
            limit = self._limits.max_live_requests
            reason = f"{limit} requests of this session are live, the server's limit; client.session() opens another"
            raise DeadlineExceeded(f"the timeout passed while the request waited to be sent: {reason}") from None

    def _check_size(self, request: pb.GenerateRequest, size: int) -> None:
        limit = self._limits.max_message_bytes
        if limit and size > limit - _FRAME_BYTES:
            advice = "; send fewer or smaller pictures" if has_pictures(request.chat) else ""
            raise invalid("prompt", f"a request of {size} bytes: expected at most {limit - _FRAME_BYTES}{advice}")

    def _claim_id(self, request: pb.GenerateRequest) -> str:
        """Give the request an id if it has none, and return its id.

        Raises InvalidRequest if a live request has the same.
        """
        if request.HasField("resume") and request.request_id in self._live:
            request.request_id = ""  # it began on another stream, where this id was free
        if not request.request_id:
            request.request_id = next(self._names)
        if request.request_id in self._live:
            raise invalid(
                "request_id", f"{request.request_id!r} is the id of a live request of this session: expected another"
            )
        return request.request_id

    def _send(self, frame: bytes) -> int:
        """Queue a frame; returns its ordinal."""
        self._ordinal += 1
        self._outbox.append(frame)
        self._outgoing.set()
        return self._ordinal

    def _abandon(self, attempt: Attempt) -> None:
        """Cancel a request at the server; it stays live until the server ends it."""
        if self._live.get(attempt.request_id) is attempt and not self._ended:
            cancel = pb.CancelRequest(request_id=attempt.request_id)
            self._send(pb.SessionRequest(cancel=cancel).SerializeToString())

    async def _write(self) -> None:
        # In a separate task: gRPC cancels the whole call when a task that awaits a write is cancelled.
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader gets the error
            while not self._ended:
                await self._outgoing.wait()
                self._outgoing.clear()
                while self._outbox and not self._ended:
                    await self._call.write(self._outbox.popleft())
                if self._draining and not self._live:  # no more requests: let the server end the stream
                    await self._call.done_writing()
                    return

    async def _read(self) -> None:
        cause: RingError = Unavailable("the session ended")
        try:
            while isinstance(frame := await self._call.read(), pb.SessionResponse):
                for response in frame.responses:
                    self._deliver(response)
                if frame.HasField("draining"):
                    self._drain()
        except grpc.RpcError as failure:
            cause = from_lost_call(failure)
        finally:  # end the live requests in any case
            self._end(cause)

    def _deliver(self, response: pb.GenerateResponse) -> None:
        attempt = self._unanswered.get(response.in_reply_to) or self._live.get(response.request_id)
        if attempt is None:
            _log.warning("a response to no live request: %r", response.request_id)
            return
        self._unanswered.pop(attempt.ordinal, None)
        if response.HasField("admitted"):
            self._pool.succeeded(self.server)
        if attempt.take(response):
            if isinstance(attempt.error, ProtocolError):
                self._abandon(attempt)  # the server may still run it
            elif attempt.error is not None:
                attempt.retrying.failed_at(self.server, self._pool, attempt.error)
            del self._live[attempt.request_id]
            self._slots.release()
            if self._draining:
                self._outgoing.set()

    def _drain(self) -> None:
        self._draining = True
        self._outgoing.set()
        self._pool.failed(self.server)
        self._slots.release()  # wakes the first waiting ``begin``; each passes the slot on and returns None

    def _end(self, cause: RingError) -> None:
        if self._ended:
            return
        self._ended = True
        self._outgoing.set()
        if not isinstance(cause, Cancelled) and not self._draining:
            self._pool.failed(self.server)
        for attempt in self._live.values():
            attempt.fail(copy.copy(cause))
        self._live.clear()
        self._unanswered.clear()
        self._slots.release()


async def _next_request(retrying: RetryingRequest) -> tuple[pb.GenerateRequest, bytes]:
    """The message of the next attempt, and its bytes. Pictures are packed in a thread: they may take long."""

    def work() -> tuple[pb.GenerateRequest, bytes]:
        request = retrying.next_request()
        return request, request.SerializeToString()

    return await asyncio.to_thread(work) if retrying.has_pictures else work()


def _frame_of(packed: bytes, request_id: str) -> bytes:
    """The frame of a packed request, which gets another id: of two values of a field, the last one counts.

    Protobuf would copy the request several times to put it into its frame.
    """
    last = pb.GenerateRequest(request_id=request_id).SerializeToString()
    return b"".join((bytes([_GENERATE]), _varint(len(packed) + len(last)), packed, last))


def _varint(number: int) -> bytes:
    """A number as protobuf writes it: 7 bits in a byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*written, number))
