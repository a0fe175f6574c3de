"""One Session stream: requests and cancels go out through one writer, responses come in through one reader.

The reader always reads, so that one slow consumer does not stall the others: what a consumer has not yet taken waits
in memory, at most its own answer. What goes out is bounded by the live requests that the server allows.
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

from ringline.course import Course
from ringline.errors import Cancelled, DeadlineExceeded, ProtocolError, RingError, Unavailable, from_lost_call, invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.results import Event
from ringline.retry import Deadline
from ringline.servers import Server, Servers

SessionCall = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]

_FRAME_BYTES = 512
"""What a request's name, its time limit and the frame around it may add to it."""
_FIRST_FRAME_SECONDS = 10.0
_log = logging.getLogger("ringline")


class Exchange:
    """One attempt at one request on a link: its events, until they are taken."""

    def __init__(self, course: Course, request_id: str, ordinal: int, abandon: Callable[[Exchange], None]) -> None:
        """``ordinal`` is that of the frame which begins it; ``abandon`` tells the server that nobody waits for it."""
        self.request_id = request_id
        self.ordinal = ordinal
        self.error: RingError | None = None
        self._course = course
        self._abandon = abandon
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.error is not None or self._course.reader.done

    async def next_event(self) -> Event | None:
        """The next event; None after the last. Raises what ended the attempt."""
        while not self._events:
            if self.over:
                if self.error is not None:
                    raise self.error
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()

    def give_up_after(self, seconds: float) -> None:
        """End it here, should the server not end it by then."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def take(self, response: pb.GenerateResponse) -> bool:
        """Read a response; whether the server will say nothing more about the request."""
        try:
            event = self._course.read(response)
        except RingError as error:
            self.error = self.error or error
            self._wake()
            return True
        done = self._course.reader.done
        if self.error is None:  # else nobody waits for it any more
            if event is not None:
                self._events.append(event)
            if done:
                self.error = self._course.reader.failure
            self._wake()
        return done

    def fail(self, cause: RingError) -> None:
        """End it, unless it has ended."""
        if not self.over:
            self.error = self._course.reader.lost(cause) or self._course.reader.failure
        self._wake()

    def cancel(self) -> None:
        """End it and tell the server, unless it has ended."""
        if not self.over:
            self.fail(Cancelled("the request was cancelled"))
            self._abandon(self)

    def _expire(self) -> None:
        if not self.over:
            self.fail(DeadlineExceeded("the request's timeout passed, and the server did not end it"))
            self._abandon(self)

    def _wake(self) -> None:
        if self.over and self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Link:
    """One Session stream, from its first frame (the limits) to its end."""

    def __init__(
        self,
        call: SessionCall,
        servers: Servers[Any],
        server: Server[Any],
        first: pb.SessionResponse,
        names: Iterator[int],
    ) -> None:
        """``first`` is the first frame; ``names`` are for requests without one.

        ``servers`` are told how ``server``, whose stream this is, does.
        """
        self.server = server
        self._servers = servers
        limits = first.limits
        self._call = call
        self._names = names
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.max_live_requests)
        self._live: dict[str, Exchange] = {}
        self._unanswered: dict[int, Exchange] = {}
        """By the ordinal of the frame that began them: a refused frame may be answered by that alone."""
        self._ordinal = 0
        self._outbox: deque[pb.SessionRequest] = deque()
        self._outgoing = asyncio.Event()
        self._draining = first.HasField("draining")
        self._ended = False
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    @classmethod
    async def open(cls, call: SessionCall, servers: Servers[Any], server: Server[Any], names: Iterator[int]) -> Link:
        """The link, once the server has said what it allows; raise the RingError with which it refused."""
        try:
            async with asyncio.timeout(_FIRST_FRAME_SECONDS):
                first = await call.read()
        except grpc.RpcError as failure:
            raise from_lost_call(failure) from None
        except TimeoutError:
            call.cancel()
            raise Unavailable(f"the server began no session within {_FIRST_FRAME_SECONDS:g} s") from None
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not isinstance(first, pb.SessionResponse):
            raise Unavailable("the server ended the session before its first frame")
        if not first.limits.max_live_requests:
            call.cancel()
            raise ProtocolError("the server broke the protocol: a session without limits")
        servers.worked(server)
        return cls(call, servers, server, first, names)

    @property
    def usable(self) -> bool:
        """Whether it takes new requests."""
        return not self._draining and not self._ended

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    async def begin(self, course: Course) -> Exchange | None:
        """Send a request, once fewer than the allowed number are live; None if another link must take it by then.

        Raises Unavailable when the link ends first.
        """
        await self._wait_for_slot(course.deadline)
        try:
            if self._draining and not self._ended:
                self._slots.release()
                return None
            if not self.usable:
                raise Unavailable("the session ended before the request was sent")
            request, backstop = course.next_request(), course.deadline.backstop()
            self._check_size(request)
            self._claim_id(request)
        except RingError:
            self._slots.release()
            raise
        ordinal = self._send(pb.SessionRequest(generate=request))
        exchange = Exchange(course, request.request_id, ordinal, self._abandon)
        if backstop is not None:
            exchange.give_up_after(backstop)
        self._live[exchange.request_id] = self._unanswered[exchange.ordinal] = exchange
        return exchange

    async def close(self) -> None:
        """End every request that is live, and the stream."""
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
            raise DeadlineExceeded("the timeout passed while as many requests as the server allows were live") from None

    def _check_size(self, request: pb.GenerateRequest) -> None:
        limit = self._limits.max_message_bytes
        if limit and request.ByteSize() + _FRAME_BYTES > limit:
            raise invalid("prompt", f"the request has {request.ByteSize()} bytes, the server takes {limit}")

    def _claim_id(self, request: pb.GenerateRequest) -> None:
        """Give the request a name, if it has none, and see that no live one has the same."""
        if request.HasField("resume") and request.request_id in self._live:
            request.request_id = ""  # it was cut on another session, which knew nothing of this one's names
        while not request.request_id:
            name = str(next(self._names))
            if name not in self._live:
                request.request_id = name
        if request.request_id in self._live:
            raise invalid("request_id", f"{request.request_id!r} is a live request of this session")

    def _send(self, frame: pb.SessionRequest) -> int:
        """Have a frame written; its ordinal."""
        self._ordinal += 1
        self._outbox.append(frame)
        self._outgoing.set()
        return self._ordinal

    def _abandon(self, exchange: Exchange) -> None:
        """Ask for the end of a request that nobody waits for; it stays live until the server says that it ended."""
        if self._live.get(exchange.request_id) is exchange and not self._ended:
            self._send(pb.SessionRequest(cancel=pb.CancelRequest(request_id=exchange.request_id)))

    async def _write(self) -> None:
        # In a task of its own: gRPC cancels the whole call when whoever awaits a write is cancelled.
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader learns why
            while not self._ended:
                await self._outgoing.wait()
                self._outgoing.clear()
                while self._outbox and not self._ended:
                    await self._call.write(self._outbox.popleft())
                if self._draining and not self._live:  # nothing will come after this: let the server end it
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
        finally:  # whatever it was, those who wait are told
            self._end(cause)

    def _deliver(self, response: pb.GenerateResponse) -> None:
        exchange = self._unanswered.get(response.in_reply_to) or self._live.get(response.request_id)
        if exchange is None:
            _log.warning("a response to no live request: %r", response.request_id)
            return
        self._unanswered.pop(exchange.ordinal, None)
        if response.HasField("admitted"):
            self._servers.worked(self.server)
        if exchange.take(response):
            if isinstance(exchange.error, ProtocolError):
                self._abandon(exchange)  # the server may still think that it is live
            elif isinstance(exchange.error, Unavailable):
                self._servers.failed(self.server)
            del self._live[exchange.request_id]
            self._slots.release()
            if self._draining:
                self._outgoing.set()

    def _drain(self) -> None:
        self._draining = True
        self._outgoing.set()
        self._servers.failed(self.server)
        self._slots.release()  # whoever waits for a slot wakes, gives it on, and goes to another link

    def _end(self, cause: RingError) -> None:
        if self._ended:
            return
        self._ended = True
        self._outgoing.set()
        if not isinstance(cause, Cancelled) and not self._draining:
            self._servers.failed(self.server)
        for exchange in self._live.values():
            exchange.fail(copy.copy(cause))
        self._live.clear()
        self._unanswered.clear()
        self._slots.release()
