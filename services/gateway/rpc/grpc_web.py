"""gRPC-Web: each message in an envelope, then the trailers in another; as bytes or base64."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from urllib.parse import quote

from google.rpc import status_pb2
from ringline.errors import invalid

from services.gateway.rpc.envelope import enclose, enclosed

BINARY, TEXT = "application/grpc-web", "application/grpc-web-text"
MEDIA_TYPES = tuple(kind + form for kind in (BINARY, TEXT) for form in ("", "+proto"))
TIMEOUT_HEADER, COMPRESSION_HEADER = "grpc-timeout", "grpc-encoding"
_TRAILERS = 0x80
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_MAX_BASE64_PARTS = 1024
"""Per body; each costs the event loop time."""


def request_data(body: bytes, *, text: bool) -> bytes:
    """The only message in a request's body. Raises InvalidRequest."""
    return enclosed(_from_base64(body) if text else body)


def message_envelope(data: bytes, *, text: bool) -> bytes:
    """A message of the answer."""
    return _sent(enclose(0, data), text)


def end_envelope(status: status_pb2.Status, *, text: bool) -> bytes:
    """The end of the answer: its trailers."""
    trailers = {"grpc-status": str(status.code), "grpc-message": quote(status.message, safe=_PRINTABLE)}
    if status.details:
        trailers["grpc-status-details-bin"] = base64.b64encode(status.SerializeToString()).decode().rstrip("=")
    lines = "".join(f"{name}: {value}\r\n" for name, value in trailers.items())
    return _sent(enclose(_TRAILERS, lines.encode()), text)


def timeout_of(headers: Mapping[str, str]) -> float | None:
    """Seconds; None without a timeout. Raises InvalidRequest."""
    if (given := headers.get(TIMEOUT_HEADER)) is None:
        return None
    if (match := _TIMEOUT.fullmatch(given)) is None:
        raise invalid(TIMEOUT_HEADER, "expected at most 8 digits and a unit of H, M, S, m, u, n")
    return int(match[1]) * _SECONDS[match[2]]


def _sent(data: bytes, text: bool) -> bytes:
    return base64.b64encode(data) if text else data


def _from_base64(body: bytes) -> bytes:
    """Clients may encode a body in several padded parts."""
    data, start = bytearray(), 0
    try:
        for _ in range(_MAX_BASE64_PARTS):
            padding = body.find(b"=", start)
            end = len(body) if padding < 0 else padding + (2 if body.startswith(b"==", padding) else 1)
            data += base64.b64decode(body[start:end], validate=True)
            if (start := end) == len(body):
                return bytes(data)
    except binascii.Error as error:
        raise invalid("message", f"cannot be read as base64: {error}") from None
    raise invalid("message", f"more than {_MAX_BASE64_PARTS} parts of base64: encode it as one")
