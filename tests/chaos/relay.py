"""A relay from one unix socket to another that can cut, delay and hold the bytes between two processes."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from pathlib import Path

_HIGH_WATER = 1 << 18


class Wire:
    """Relays connections to ``path`` to ``target``."""

    def __init__(self, name: str, path: Path, target: Path) -> None:
        self.name, self.path, self.target = name, path, target
        self.delay = 0.0
        """Seconds by which each byte is held back, in either direction."""
        self._open = asyncio.Event()
        self._open.set()
        self.ends: set[_End] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: _End(self), str(self.path))

    def close(self) -> None:
        """Stop listening, and abort every connection."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._dialling:
            task.cancel()

    def cut(self) -> None:
        """Abort every connection; new ones are relayed."""
        for end in list(self.ends):
            end.abort()

    def hold(self) -> None:
        """Pass nothing on, and close nothing: a half-open link."""
        self._open.clear()
        for end in list(self.ends):
            end.flow()

    def release(self) -> None:
        """End a delay or a hold."""
        self.delay = 0.0
        self._open.set()
        for end in list(self.ends):
            end.flow()

    @property
    def held(self) -> bool:
        return not self._open.is_set()

    def add_end(self, end: _End) -> None:
        """Connect a new client's end to the target."""
        self.ends.add(end)
        task = asyncio.create_task(self._dial(end))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, end: _End) -> None:
        await self._open.wait()
        try:
            _, other = await asyncio.get_running_loop().create_unix_connection(
                lambda: _End(self, end), str(self.target)
            )
        except OSError:
            end.abort()
        else:
            self.ends.add(other)


class _End(asyncio.Protocol):
    def __init__(self, wire: Wire, other: _End | None = None) -> None:
        self._wire = wire
        self._other = other
        self._dialled = other is not None
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        """Bytes from the other end, and when they are due."""
        self._full = False
        """Whether the write buffer is above its high-water mark."""

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
            self._wire.add_end(self)

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.take(data, self._wire.delay)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._wire.ends.discard(self)
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
        """Write ``data`` after ``delay`` seconds, in order."""
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
        """Resume or pause reading: paused while the wire is held, or the other end is missing or full."""
        if self._transport is None:
            return
        with suppress(RuntimeError):
            if self._wire.held or self._other is None or self._other._full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
