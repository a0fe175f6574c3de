"""The open calls of a gRPC server: limits on their number, in all and per client, and how they are ended.

A call does not end with its handler: gRPC keeps it until its client has read the last messages and the status. A client
that gives no flow-control window would keep it as long as the connection, and ``grpc.aio`` cannot reset a stream. But
gRPC does so itself (RST_STREAM) when nothing refers to an unfinished call; after the handler has returned, the only
reference is the task in which ``grpc.aio`` waits for the call's end. So we cancel that task.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from services.common.rpc.connections import parse_peer
from services.common.telemetry.logs import RateLimitedLog
from services.ring.errors import Code, Status

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

_HANDLING = "_handle_exceptions"
"""The coroutine in which ``grpc.aio`` runs a handler; the task that starts it waits for the end of the call."""
_STATUS_TIMEOUT = 1.0
"""Seconds that a client which has read nothing still gets to read the status of its call."""
_RETRY_AFTER_MS = 1000
_HANDLERS_PER_TURN = 32
"""The most handlers that begin in one turn of the event loop."""
_completion_task: ContextVar[asyncio.Task[Any] | None] = ContextVar("completion_task", default=None)
"""In a handler: the task that waits for the end of its call."""


class Call:
    """One call, from the arrival of its metadata until gRPC releases it."""

    def __init__(self, calls: CallRegistry) -> None:
        """Must run in the task of the call's handler."""
        self._calls = calls
        self.handler_task = asyncio.current_task()
        self.completion_task = _completion_task.get()
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ""
        """In gRPC's notation; known once the call is admitted."""
        self.eviction: Status | None = None
        """The status with which the server ends the call early; None if it does not."""

    def evict(self, status: Status) -> None:
        """Cancel the call's handler; the client gets ``status``."""
        self.eviction = status
        if self.handler_task is not None:
            self.handler_task.cancel()
        self.end_within(_STATUS_TIMEOUT)

    def end_within(self, seconds: float) -> None:
        """Reset the stream after ``seconds`` unless the call has ended by then. An earlier deadline stays."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        if self.completion_task is not None and not self.completion_task.done():
            self._timer = loop.call_later(seconds, self._reset)

    def ended(self) -> None:
        """Drop the tasks once gRPC is done with the call: they refer to the call, and the cycle would keep it alive."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.handler_task = self.completion_task = None
        self._calls.forget(self)

    def _reset(self) -> None:
        self._calls.resets.write(peer=self.peer)
        for task in (self.handler_task, self.completion_task):
            if task is not None:
                task.cancel()


_current: ContextVar[Call | None] = ContextVar("call", default=None)


def end_call_soon() -> None:
    """End the call of this handler soon, even if its client does not read the status."""
    if (call := _current.get()) is not None:
        call.end_within(_STATUS_TIMEOUT)


def current_call() -> Call | None:
    """The call of this handler."""
    return _current.get()


class CallRegistry:
    """All open calls of one server, at most ``max_calls``.

    A client is an IP address; all peers on a unix socket are one client with one connection. A single client may have
    all calls. When the server is full and a client with fewer calls wants another, the client with the most loses its
    newest. So every client gets its fair share (a switch's longest-queue drop).
    """

    def __init__(self, max_calls: int, max_connections: int) -> None:
        """``max_connections``: connections with calls that one client may have. Needs a running event loop."""
        self.resets = RateLimitedLog(log, "call reset: its client read nothing")
        self._max_calls = max_calls
        self._max_connections = max_connections
        self._clients: dict[str, _Client] = {}
        self._num_admitted = 0
        self._begun = 0
        """Handlers that began in this turn of the event loop."""
        self._queue: deque[asyncio.Future[None]] = deque()
        """Handlers that wait for a turn."""
        self._open: set[asyncio.Task[Any]] = set()
        self._handlers: set[asyncio.Task[Any]] = set()
        asyncio.get_running_loop().set_task_factory(_make_task)

    @property
    def num_open(self) -> int:
        """Calls that gRPC has not released."""
        return len(self._open)

    def has_calls(self, host: str, port: int) -> bool:
        """Whether the connection from that address and port has calls. Thread-safe."""
        client = self._clients.get(host)
        return client is not None and port in client.connections

    def begin(self) -> Call:
        """Register a call; runs in the task of its handler."""
        call = Call(self)
        _current.set(call)
        if (handler := call.handler_task) is not None:
            self._handlers.add(handler)
            handler.add_done_callback(self._handlers.discard)
        if (last := call.completion_task or handler) is not None:
            self._open.add(last)
            last.add_done_callback(self._open.discard)
            last.add_done_callback(lambda _: call.ended())
        return call

    async def wait_turn(self) -> None:
        """Delay a handler while many begin at once, so that a flood of calls does not starve the event loop."""
        if self._begun < _HANDLERS_PER_TURN and not self._queue:
            self._begun += 1
            if self._begun == 1:
                asyncio.get_running_loop().call_soon(self._next_turn)
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._begun = 0
        while self._queue and self._begun < _HANDLERS_PER_TURN:
            turn = self._queue.popleft()
            if not turn.done():  # else the call was cancelled meanwhile
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)

    async def wait_ended(self, seconds: float) -> None:
        """Wait until every handler has returned, for at most ``seconds``.

        ``grpc.aio.Server.stop`` cancels handlers but does not wait for them; a loop that closes meanwhile makes gRPC
        print a traceback for each.
        """
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=seconds)

    def admit(self, call: Call, peer: str) -> Status | None:
        """Count ``call`` for its client; returns the refusal, or None. ``peer``: in gRPC's notation."""
        call.peer = peer
        name, connection = _client_of(peer)
        client = self._clients.get(name) or _Client()
        if connection not in client.connections and len(client.connections) >= self._max_connections:
            limit = f"limit of {self._max_connections} connections with calls per client reached"
            return _exhausted(f"{limit}; reuse one of them")
        if self._num_admitted >= self._max_calls and not self._make_room(len(client.calls)):
            limit = f"limit of {self._max_calls} open calls reached"
            return _exhausted(f"{limit}, and this client has its share of them; retry later")
        self._clients[name] = client
        client.calls[call] = None
        client.connections[connection] += 1
        self._num_admitted += 1
        return None

    def forget(self, call: Call) -> None:
        """Stop counting ``call``, if it was admitted."""
        name, connection = _client_of(call.peer)
        client = self._clients.get(name)
        if client is None or call not in client.calls:
            return
        del client.calls[call]
        client.connections[connection] -= 1
        if not client.connections[connection]:
            del client.connections[connection]
        if not client.calls:
            del self._clients[name]
        self._num_admitted -= 1

    def _make_room(self, held: int) -> bool:
        """Evict a call of the client with the most, in favor of a client that has ``held`` calls.

        Returns False, and evicts nothing, if that would not make the shares more equal.
        """
        heaviest = max(self._clients.values(), key=lambda client: len(client.calls))
        if len(heaviest.calls) <= held + 1:
            return False
        newest = next(reversed(heaviest.calls))
        self.forget(newest)
        problem = f"limit of {self._max_calls} open calls reached: this one made room for another client; retry later"
        newest.evict(_exhausted(problem))
        return True


@dataclass(slots=True)
class _Client:
    calls: dict[Call, None] = field(default_factory=dict)
    """Its open calls, oldest first."""
    connections: Counter[int] = field(default_factory=Counter)
    """Number of calls of each connection, by its source port."""


def _exhausted(message: str) -> Status:
    return Status(Code.RESOURCE_EXHAUSTED, message, _RETRY_AFTER_MS)


def _client_of(peer: str) -> tuple[str, int]:
    """Address and port of a peer as gRPC writes it."""
    return parse_peer(peer) or ("unix", 0)


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
    *,
    name: str | None = None,
    context: Context | None = None,
) -> asyncio.Task[_T]:
    """Make a task as the event loop does; for a handler's, set ``_completion_task`` to the task that starts it."""
    if getattr(coro, "__name__", "") == _HANDLING:
        context = copy_context() if context is None else context
        context.run(_completion_task.set, asyncio.current_task(loop))
    return asyncio.Task(coro, loop=loop, name=name, context=context)
