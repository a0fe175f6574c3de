"""Bare HTTP/2 connections of gRPC clients that need not behave: every frame is theirs to choose, or to leave out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = 8
INITIAL_WINDOW_SIZE = 4
DEFAULT_WINDOW = 65535
LARGEST_WINDOW = 2**31 - 1
MAX_FRAME = 16384
WAIT = 60.0
"""Seconds that a server has for whatever is waited for."""
_DIAL = 10.0


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def headers(path: str = "/ringline.inference.v1.InferenceService/ListModels", **more: str) -> bytes:
    """Of a call, in HPACK: each a literal with a name of its own."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    } | more
    return b"".join(
        b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
        for name, value in fields.items()
    )


def message(data: bytes) -> bytes:
    """As gRPC frames it."""
    return b"\0" + struct.pack(">I", len(data)) + data


class Connection:
    """One connection. It answers pings and settings, and gives back as much window as it was told to."""

    def __init__(
        self, address: str, *, source: str | None = None, window: int = DEFAULT_WINDOW, reads: bool = True
    ) -> None:
        """``source`` is the address it comes from. ``window`` is that of each stream.

        Without ``reads`` it takes what is sent from the wire, but never gives window back.
        """
        self._address = address
        self._source = source
        self._window = window
        self._reads = reads
        self._next_stream = 1
        self._room: dict[int, int] = {}
        """Of each stream, how much may be sent; 0 is the connection."""
        self._first_room = DEFAULT_WINDOW
        self._news = asyncio.Condition()
        self._heard: asyncio.Task[None] | None = None
        self.sent = 0
        self.received = 0
        """Bytes of answers."""
        self.ended: set[int] = set()
        """Streams that the server ended."""

    async def __aenter__(self) -> Connection:
        await self.dial()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def dial(self) -> None:
        """Connect, and say nothing yet."""
        unix = self._address.startswith("unix:")
        host, _, port = self._address.rpartition(":")
        end = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        try:
            end.setblocking(False)
            if self._source is not None:
                end.bind((self._source, 0))
            async with asyncio.timeout(_DIAL):
                target = self._address.removeprefix("unix:") if unix else (host, int(port))
                await asyncio.get_running_loop().sock_connect(end, target)
                self._reader, self._writer = await asyncio.open_connection(sock=end)
        except BaseException:  # also of who is told to stop: it must leave nothing behind
            end.close()
            raise
        self._room = {0: DEFAULT_WINDOW}
        self._heard = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Be gone, without a word."""
        if self._heard is not None:
            self._writer.transport.abort()
            self._heard.cancel()
            await asyncio.gather(self._heard, return_exceptions=True)

    @property
    def lost(self) -> bool:
        """Whether the server closed it."""
        return self._heard is not None and (self._heard.done() or self._writer.transport.is_closing())

    async def say(self, data: bytes) -> bool:
        """Send bytes, whatever they are; whether the server still listened."""
        if self.lost:
            return False
        try:
            self._writer.write(data)
            async with asyncio.timeout(WAIT):
                await self._writer.drain()
        except ConnectionError:
            return False
        self.sent += len(data)
        return True

    async def greet(self) -> bool:
        """Begin as HTTP/2 clients do."""
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, self._window)
        return await self.say(PREFACE + frame(SETTINGS, 0, 0, settings))

    async def call(self, path: str, metadata: Mapping[str, str] | None = None) -> int:
        """Begin a call; returns its stream."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._room[stream] = self._first_room
        if not await self.say(frame(HEADERS, END_HEADERS, stream, headers(path, **(metadata or {})))):
            raise ConnectionResetError("the server closed the connection")
        return stream

    async def send(self, stream: int, data: bytes, *, last: bool = False) -> None:
        """Send bytes of a stream as far as the server lets it, until it did or ended the stream."""
        at = 0
        while at < len(data) or (last and not data):
            room = await self._wait_for_room(stream)
            if room is None:
                return
            part = data[at : at + min(room, MAX_FRAME)]
            at += len(part)
            for counted in (0, stream):
                self._room[counted] -= len(part)
            if not await self.say(frame(DATA, END_STREAM if last and at >= len(data) else 0, stream, part)):
                raise ConnectionResetError("the server closed the connection")
            if not data:
                return

    async def send_what_fits(self, stream: int, data: bytes) -> None:
        """Send bytes of a stream until the server gives no more window, and leave it there."""
        part = data[: max(0, min(self._room[0], self._room.get(stream, 0), MAX_FRAME))]
        if part:
            await self.send(stream, part)

    async def reset(self, stream: int) -> None:
        """Take a call back."""
        await self.say(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))

    async def has_ended(self, streams: int) -> None:
        """Until the server ended so many."""
        async with asyncio.timeout(WAIT), self._news:
            await self._news.wait_for(lambda: len(self.ended) >= streams or self.lost)
        if len(self.ended) < streams:
            raise ConnectionResetError("the server closed the connection")

    async def closed(self) -> None:
        """Until the server closes the connection."""
        assert self._heard is not None
        async with asyncio.timeout(WAIT):
            await asyncio.shield(self._heard)

    async def _wait_for_room(self, stream: int) -> int | None:
        """Bytes that may be sent now; None once the server ended the stream."""
        async with self._news:
            await self._news.wait_for(
                lambda: stream in self.ended or self.lost or min(self._room[0], self._room[stream]) > 0
            )
        if self.lost:
            raise ConnectionResetError("the server closed the connection")
        return None if stream in self.ended else min(self._room[0], self._room[stream])

    async def _listen(self) -> None:
        """Until the server closes the connection."""
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await self._reader.readexactly(9)
                    payload = await self._reader.readexactly(int.from_bytes(head[:3]))
                    await self._hear(head[3], head[4], int.from_bytes(head[5:9]), payload)
        finally:
            await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _hear(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._writer.transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        match kind:
            case 0 if payload:  # DATA
                self.received += len(payload)
                if self._reads:
                    update = struct.pack(">I", len(payload))
                    self._writer.write(frame(WINDOW_UPDATE, 0, 0, update) + frame(WINDOW_UPDATE, 0, stream, update))
            case 4 if not flags & ACK:  # SETTINGS
                self._set(payload)
                self._writer.write(frame(SETTINGS, ACK, 0, b""))
            case 6 if not flags & ACK:  # PING
                self._writer.write(frame(PING, ACK, 0, payload))
            case 8:  # WINDOW_UPDATE
                self._room[stream] = self._room.get(stream, 0) + int.from_bytes(payload)
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.add(stream)
        if kind in (RST_STREAM, HEADERS, SETTINGS, WINDOW_UPDATE):
            await self._tell()

    def _set(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            setting, value = struct.unpack_from(">HI", payload, at)
            if setting == INITIAL_WINDOW_SIZE:
                for stream in self._room.keys() - {0}:
                    self._room[stream] += value - self._first_room
                self._first_room = value
