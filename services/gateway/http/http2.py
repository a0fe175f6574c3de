"""The answer to a client that speaks HTTP/2 to the HTTP/1.1 port: mostly gRPC, which belongs to the processor's port.

It is in HTTP/2, so that the client can show it: the first call gets a gRPC status with the reason, and so does the
connection's end. Of the client's frames only their heads are read.
"""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MESSAGE = "this port speaks HTTP/1.1: gRPC clients connect to the processor's port, --port of `ringline serve`"

_UNIMPLEMENTED = "12"
_NO_ERROR = 0
"""HTTP_1_1_REQUIRED, which would be the code, kills the processes of gRPC's clients: its core knows no such code."""
_MAX_FRAME = 1 << 14
_SETTINGS, _HEADERS, _GOAWAY = 4, 1, 7
_END_OF_STREAM_AND_HEADERS = 0x5
_FRAME = struct.Struct(">BHBBI")
"""Length (in 8 and 16 bits), type, flags, stream."""


class Http2Refusal:
    """Reads frames until the first call."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._skip = len(PREFACE)

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Take data of the client, from the preface on; returns what to send, and whether to close then."""
        answer = _frame(_SETTINGS, 0, 0, b"") if not self._unread and self._skip == len(PREFACE) else b""
        self._unread += data
        while len(self._unread) >= self._skip + _FRAME.size:
            high, low, kind, _, stream = _FRAME.unpack_from(self._unread, self._skip)
            if (high << 16 | low) > _MAX_FRAME:
                return answer + _goaway(0), True
            if kind == _HEADERS:
                return answer + _refusal(stream) + _goaway(stream), True
            self._skip += _FRAME.size + (high << 16 | low)
            read = min(self._skip, len(self._unread))
            del self._unread[:read]
            self._skip -= read
        return answer, False


def _refusal(stream: int) -> bytes:
    """A call's only headers: HTTP's status for other clients, gRPC's for its own."""
    headers = {
        ":status": "505",
        "content-type": "application/grpc",
        "grpc-status": _UNIMPLEMENTED,
        "grpc-message": MESSAGE,
    }
    return _frame(_HEADERS, _END_OF_STREAM_AND_HEADERS, stream, b"".join(map(_literal, headers, headers.values())))


def _literal(name: str, value: str) -> bytes:
    """A header in HPACK, neither indexed nor compressed. Lengths of 127 and more take a second byte."""
    return b"\x00" + b"".join(_length(len(text)) + text.encode() for text in (name, value))


def _length(count: int) -> bytes:
    return bytes([count]) if count < 127 else bytes([127, count - 127])


def _goaway(last_stream: int) -> bytes:
    return _frame(_GOAWAY, 0, 0, struct.pack(">II", last_stream, _NO_ERROR) + MESSAGE.encode())


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload
