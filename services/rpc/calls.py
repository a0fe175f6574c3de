"""The calls of a gRPC server, each until gRPC lets go of it: how many one client may have, and an end for every one.

A call does not end with its handler: gRPC keeps it until its client has taken what is under way and the status. One
whose client gives it no window would stay for as long as the connection, and ``grpc.aio`` has no way to reset a stream.
But gRPC does so itself (RST_STREAM) when nothing refers to an unfinished call any more; and what refers to it, once its
handler is done, is the task in which ``grpc.aio`` waits for its end. So that task is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from services.ring.errors import Code, Status
from services.rpc.connections import peer_of
from services.telemetry.logs import RateLimitedLog

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

_HANDLING = "_handle_exceptions"
"""The coroutine in which ``grpc.aio`` runs a handler; the task that begins it waits for the end of the call."""
_LAST_WORDS = 1.0
"""Seconds in which a client that took nothing may yet take why its call ends."""
_RETRY_AFTER_MS = 1000
_CALLS_PER_TURN = 32
_waiting: ContextVar[asyncio.Task[Any] | None] = ContextVar("waiting", default=None)
"""In a handler: the task that waits for the end of its call."""


class Call:
    """One call, from when gRPC has its metadata."""

    def __init__(self, calls: Calls) -> None:
        """Made in the task of its handler."""
        self._calls = calls
        self._handling = asyncio.current_task()
        self._waiting = _waiting.get()
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ""
        """Who calls, as gRPC writes it; known once it is admitted."""
        self.pushed_out: Status | None = None
        """Why it ends before its time, if it does."""

    def admit(self, peer: str) -> Status | None:
        """Count the call for its client; returns why it is refused, if it is."""
        self.peer = peer
        return self._calls.admit(self)

    def push_out(self, status: Status) -> None:
        """Have its handler cancelled; the status is why."""
        self.pushed_out = status
        if self._handling is not None:
            self._handling.cancel()
        self.end_within(_LAST_WORDS)

    def end_within(self, seconds: float) -> None:
        """Have gRPC let go of the call, at the latest after so long, whatever its client took."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        if self._waiting is not None and not self._waiting.done():
            self._timer = loop.call_later(seconds, self._let_go)

    def ended(self) -> None:
        """Nothing is left of it. Its tasks refer to it, so it must not refer to them: gRPC would not let go of it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._handling = self._waiting = None
        self._calls.forget(self)

    def _let_go(self) -> None:
        self._calls.resets.tell(peer=self.peer)
        for task in (self._handling, self._waiting):
            if task is not None:
                task.cancel()


_current: ContextVar[Call | None] = ContextVar("call", default=None)


def end_soon() -> None:
    """Have the call of this handler end, whether or not its client, which took nothing, takes the status."""
    if (call := _current.get()) is not None:
        call.end_within(_LAST_WORDS)


def current_call() -> Call | None:
    """The call of this handler."""
    return _current.get()


class Calls:
    """All calls of one server, of which there may be so many.

    A client is an address; what comes through a unix socket is one client with one connection. One alone may have all
    calls. When there is no place left, the client that has most of them loses its newest to one that has fewer: so each
    may have its fair share, whatever others hold. (The longest queue drops, in the words of switches.)
    """

    def __init__(self, max_calls: int, max_connections: int) -> None:
        """``max_connections``, with calls on them, is for each client. Needs a running event loop."""
        self.resets = RateLimitedLog(log, "call reset: its client took nothing")
        self._max_calls = max_calls
        self._max_connections = max_connections
        self._clients: dict[str, _Client] = {}
        self._num_admitted = 0
        self._begun = 0
        """Handlers since the event loop last looked at anything else."""
        self._queue: deque[asyncio.Future[None]] = deque()
        """Those that wait for their turn."""
        self._open: set[asyncio.Task[Any]] = set()
        self._handling: set[asyncio.Task[Any]] = set()
        _watch_tasks(asyncio.get_running_loop())

    @property
    def num_open(self) -> int:
        """Calls that gRPC has not let go of."""
        return len(self._open)

    def is_busy(self, host: str, port: int) -> bool:
        """Whether there are calls on the connection from there. Any thread may ask."""
        client = self._clients.get(host)
        return client is not None and port in client.connections

    def begin(self) -> Call:
        """A call began, in whose handler's task this is."""
        call = Call(self)
        _current.set(call)
        handling, waiting = asyncio.current_task(), _waiting.get()
        if handling is not None:
            self._handling.add(handling)
            handling.add_done_callback(self._handling.discard)
        if (last := waiting or handling) is not None:
            self._open.add(last)
            last.add_done_callback(self._open.discard)
            last.add_done_callback(lambda _: call.ended())
        return call

    async def turn(self) -> None:
        """Wait for a handler's turn to begin: of a flood only so many do before the event loop looks at all else."""
        if self._begun < _CALLS_PER_TURN and not self._queue:
            self._begun += 1
            if self._begun == 1:
                asyncio.get_running_loop().call_soon(self._next_turn)
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._begun = 0
        while self._queue and self._begun < _CALLS_PER_TURN:
            turn = self._queue.popleft()
            if not turn.done():  # else its client left meanwhile
                turn.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)

    async def wait_ended(self, seconds: float) -> None:
        """Wait until every handler has returned, for at most ``seconds``.

        ``grpc.aio.Server.stop`` cancels handlers but does not wait for them; a loop that closes meanwhile makes gRPC
        print a traceback for each.
        """
        if self._handling:
            await asyncio.wait(self._handling, timeout=seconds)

    def admit(self, call: Call) -> Status | None:
        """Count a call for its client; returns why it is refused, if it is."""
        name, connection = _client_of(call.peer)
        client = self._clients.get(name) or _Client()
        if connection not in client.connections and len(client.connections) >= self._max_connections:
            return _exhausted(f"this client has calls on {self._max_connections} connections, as many as it may have")
        if self._num_admitted >= self._max_calls and not self._make_room(len(client.calls)):
            return _exhausted(f"this server has {self._max_calls} calls open, and this client its share of them")
        self._clients[name] = client
        client.calls[call] = None
        client.connections[connection] += 1
        self._num_admitted += 1
        return None

    def forget(self, call: Call) -> None:
        """A call counts no longer, if it did."""
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
        """Push out a call of the client that has most, if that are more than ``held`` and the one to come."""
        heaviest = max(self._clients.values(), key=lambda client: len(client.calls))
        if len(heaviest.calls) <= held + 1:
            return False
        newest = next(reversed(heaviest.calls))
        self.forget(newest)
        newest.push_out(_exhausted(f"this server has {self._max_calls} calls open, and another client its share"))
        return True


@dataclass(slots=True)
class _Client:
    calls: dict[Call, None] = field(default_factory=dict)
    """In the order in which they came."""
    connections: Counter[int] = field(default_factory=Counter)
    """Calls by the port that a connection comes from."""


def _exhausted(message: str) -> Status:
    return Status(Code.RESOURCE_EXHAUSTED, message, _RETRY_AFTER_MS)


def _client_of(peer: str) -> tuple[str, int]:
    """Address and connection of a peer as gRPC writes it."""
    return peer_of(peer) or ("unix", 0)


def _watch_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let each handler know the task that waits for the end of its call: the one that begins the handler's."""
    if isinstance(loop.get_task_factory(), _TaskFactory):
        return
    loop.set_task_factory(_TaskFactory())


class _TaskFactory:
    """Makes tasks as the event loop does; those of handlers know which task made them."""

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        if getattr(coro, "__name__", "") == _HANDLING:
            context = copy_context() if context is None else context
            context.run(_waiting.set, asyncio.current_task(loop))
        return asyncio.Task(coro, loop=loop, name=name, context=context)
