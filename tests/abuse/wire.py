"""Bare HTTP/2 connections for gRPC clients that choose every frame themselves."""

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
"""Seconds in which a server must do whatever is waited for."""
_DIAL = 10.0


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def headers(path: str = "/ringline.inference.v1.InferenceService/ListModels", **more: str) -> bytes:
    """Of a call, in HPACK, as literals that are not indexed."""
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


def field(number: int, data: bytes) -> bytes:
    """Of bytes, in a message of protobuf."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def message(data: bytes) -> bytes:
    """Add gRPC's length prefix."""
    return b"\0" + struct.pack(">I", len(data)) + data


class Connection:
    """Answers PING and SETTINGS, and unless told otherwise returns window for what it reads."""

    def __init__(
        self, address: str, *, source: str | None = None, window: int = DEFAULT_WINDOW, reads: bool = True
    ) -> None:
        """``source``: its own IP address. ``window``: of each stream.

        Without ``reads`` it receives as much as the first windows allow, and never returns window.
        """
        self._address = address
        self._source = source
        self._window = window
        self._reads = reads
        self._next_stream = 1
        self._windows: dict[int, int] = {}
        """Bytes that may be sent, by stream; 0 is the connection."""
        self._first_window = DEFAULT_WINDOW
        self._changed = asyncio.Condition()
        self._reader_task: asyncio.Task[None] | None = None
        self.sent = 0
        self.received = 0
        """Bytes of DATA frames."""
        self.ended: set[int] = set()
        """Streams that the server has ended."""
        self.is_served = False
        """Whether the server has sent its settings, as it does once it has a connection."""

    async def __aenter__(self) -> Connection:
        await self.dial()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def dial(self) -> None:
        """Connect without sending anything."""
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
        except BaseException:  # also of a cancelled task: the socket must not leak
            end.close()
            raise
        self._windows = {0: DEFAULT_WINDOW}
        self._reader_task = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Abort the connection."""
        if self._reader_task is not None:
            self._writer.transport.abort()
            self._reader_task.cancel()
            await asyncio.gather(self._reader_task, return_exceptions=True)

    @property
    def lost(self) -> bool:
        """Whether the server has closed the connection."""
        return self._reader_task is not None and (self._reader_task.done() or self._writer.transport.is_closing())

    async def write(self, data: bytes) -> bool:
        """Write raw bytes; returns whether the connection is still open."""
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

    async def send_preface(self) -> bool:
        """With SETTINGS; returns whether the connection is still open."""
        settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, self._window)
        return await self.write(PREFACE + frame(SETTINGS, 0, 0, settings))

    async def call(self, path: str, metadata: Mapping[str, str] | None = None) -> int:
        """Send HEADERS; returns the stream."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._windows[stream] = self._first_window
        if not await self.write(frame(HEADERS, END_HEADERS, stream, headers(path, **(metadata or {})))):
            raise ConnectionResetError("the server closed the connection")
        return stream

    async def send(self, stream: int, data: bytes, *, last: bool = False) -> None:
        """Send DATA as the server's windows allow, until all is sent or the server ends the stream."""
        at = 0
        while at < len(data) or (last and not data):
            window = await self._wait_for_window(stream)
            if window is None:
                return
            part = data[at : at + min(window, MAX_FRAME)]
            at += len(part)
            for counted in (0, stream):
                self._windows[counted] -= len(part)
            if not await self.write(frame(DATA, END_STREAM if last and at >= len(data) else 0, stream, part)):
                raise ConnectionResetError("the server closed the connection")
            if not data:
                return

    async def send_what_fits(self, stream: int, data: bytes) -> None:
        """Send as much of ``data`` as fits the window and one frame."""
        part = data[: max(0, min(self._windows[0], self._windows.get(stream, 0), MAX_FRAME))]
        if part:
            await self.send(stream, part)

    async def reset(self, stream: int) -> None:
        """Cancel a call."""
        await self.write(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))

    async def wait_streams_ended(self, streams: int) -> None:
        """Wait until the server has ended ``streams`` streams."""
        async with asyncio.timeout(WAIT), self._changed:
            await self._changed.wait_for(lambda: len(self.ended) >= streams or self.lost)
        if len(self.ended) < streams:
            raise ConnectionResetError("the server closed the connection")

    async def wait_closed(self) -> None:
        """Wait until the server closes the connection."""
        assert self._reader_task is not None
        async with asyncio.timeout(WAIT):
            await asyncio.shield(self._reader_task)

    async def _wait_for_window(self, stream: int) -> int | None:
        """Return how many bytes may be sent now; None once the server has ended the stream."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: stream in self.ended or self.lost or min(self._windows[0], self._windows[stream]) > 0
            )
        if self.lost:
            raise ConnectionResetError("the server closed the connection")
        return None if stream in self.ended else min(self._windows[0], self._windows[stream])

    async def _read(self) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await self._reader.readexactly(9)
                    payload = await self._reader.readexactly(int.from_bytes(head[:3]))
                    await self._on_frame(head[3], head[4], int.from_bytes(head[5:9]), payload)
        finally:
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._writer.transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        match kind:
            case 0 if payload:  # DATA
                self.received += len(payload)
                if self._reads:
                    update = struct.pack(">I", len(payload))
                    self._writer.write(frame(WINDOW_UPDATE, 0, 0, update) + frame(WINDOW_UPDATE, 0, stream, update))
            case 4 if not flags & ACK:  # SETTINGS
                self._on_settings(payload)
                self._writer.write(frame(SETTINGS, ACK, 0, b""))
            case 6 if not flags & ACK:  # PING
                self._writer.write(frame(PING, ACK, 0, payload))
            case 8:  # WINDOW_UPDATE
                self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(payload)
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.add(stream)
        if kind in (RST_STREAM, HEADERS, SETTINGS, WINDOW_UPDATE):
            await self._notify()

    def _on_settings(self, payload: bytes) -> None:
        self.is_served = True
        for at in range(0, len(payload), 6):
            setting, value = struct.unpack_from(">HI", payload, at)
            if setting == INITIAL_WINDOW_SIZE:
                for stream in self._windows.keys() - {0}:
                    self._windows[stream] += value - self._first_window
                self._first_window = value
