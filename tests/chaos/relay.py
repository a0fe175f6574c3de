"""A wire between two processes that can be cut, slowed and held: a relay of bytes from one unix socket to another."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from pathlib import Path

_HIGH_WATER = 1 << 18


class Wire:
    """Everything that connects to ``path`` is connected to ``target``."""

    def __init__(self, name: str, path: Path, target: Path) -> None:
        self.name, self.path, self.target = name, path, target
        self.delay = 0.0
        """Seconds that each byte takes, in either direction."""
        self._open = asyncio.Event()
        self._open.set()
        self._ends: set[_End] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: _End(self), str(self.path))

    def close(self) -> None:
        """Listen no longer, and end every connection."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._dialling:
            task.cancel()

    def cut(self) -> None:
        """End every connection; new ones are let through."""
        for end in list(self._ends):
            end.abort()

    def hold(self) -> None:
        """Let nothing through, and end nothing: a half-open link."""
        self._open.clear()
        for end in list(self._ends):
            end.flow()

    def release(self) -> None:
        """As it should be."""
        self.delay = 0.0
        self._open.set()
        for end in list(self._ends):
            end.flow()

    @property
    def held(self) -> bool:
        """Whether nothing gets through."""
        return not self._open.is_set()

    def joined(self, end: _End) -> None:
        """Somebody connected: connect them to the target."""
        self._ends.add(end)
        task = asyncio.create_task(self._dial(end))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def left(self, end: _End) -> None:
        """A connection is over."""
        self._ends.discard(end)

    async def _dial(self, end: _End) -> None:
        await self._open.wait()
        try:
            _, other = await asyncio.get_running_loop().create_unix_connection(
                lambda: _End(self, end), str(self.target)
            )
        except OSError:
            end.abort()
        else:
            self._ends.add(other)


class _End(asyncio.Protocol):
    """One end of a relayed connection."""

    def __init__(self, wire: Wire, other: _End | None = None) -> None:
        self._wire = wire
        self._other = other
        self._dialled = other is not None
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        """What came from the other end, and when it is to be passed on."""
        self._full = False
        """Whether this end takes no more for now."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_WATER)
        if self._dialled:
            assert self._other is not None
            self._other._other = self
            self._other.flow()
        else:
            transport.pause_reading()
            self._wire.joined(self)

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.take(data, self._wire.delay)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._wire.left(self)
        if self._other is not None:
            self._other.abort()

    def pause_writing(self) -> None:
        self._full = True
        if self._other is not None:
            self._other.flow()

    def resume_writing(self) -> None:
        self._full = False
        if self._other is not None:
            self._other.flow()

    def take(self, data: bytes, delay: float) -> None:
        """Pass something on, in order."""
        if delay == 0.0 and not self._waiting:
            if self._transport is not None:
                self._transport.write(data)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if self._waiting:
            due = max(due, self._waiting[-1][0])
        self._waiting.append((due, data))
        loop.call_at(due, self._pass_on)

    def _pass_on(self) -> None:
        if self._waiting:
            _, data = self._waiting.popleft()
            if self._transport is not None:
                self._transport.write(data)

    def flow(self) -> None:
        """Read, unless the wire is held, or the other end is not there or full."""
        if self._transport is None:
            return
        with suppress(RuntimeError):
            if self._wire.held or self._other is None or self._other._full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def abort(self) -> None:
        """End it, without what was under way."""
        if self._transport is not None:
            self._transport.abort()
