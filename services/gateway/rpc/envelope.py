"""What both protocols share: envelopes (1 byte of flags, 4 of length, big-endian), and messages as protobuf or JSON."""

from __future__ import annotations

import struct
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from ringline.errors import InvalidRequest, invalid

from services.common.rpc.message_limits import MalformedMessage, MessageLimits, parse
from services.gateway.http.large import has_more_entries
from services.ring.errors import Refused

MAX_FIELDS = 32768
MAX_JSON_BYTES = 1 << 20
"""JSON takes many times its size in memory; protobuf may be as large as any body."""
COMPRESSED = 1
_HEADER = struct.Struct(">BI")

_M = TypeVar("_M", bound=Message)


def enclose(flags: int, data: bytes) -> bytes:
    """Put data in an envelope."""
    return _HEADER.pack(flags, len(data)) + data


def enclosed(body: bytes) -> bytes:
    """The data of the only envelope in ``body``. Raises InvalidRequest."""
    if len(body) < _HEADER.size:
        raise invalid("message", "expected one message, after one byte of flags and four of its length")
    flags, length = _HEADER.unpack_from(body)
    if flags:
        what = "compressed messages are not read: send it as it is" if flags == COMPRESSED else f"unknown flags {flags}"
        raise invalid("message", what)
    if length != len(body) - _HEADER.size:
        raise invalid("message", f"{len(body) - _HEADER.size} bytes: expected one message, of {length} bytes")
    return body[_HEADER.size :]


def decode(kind: type[_M], data: bytes, *, json: bool) -> _M:
    """The message in ``data``. Raises InvalidRequest if it is malformed or too large."""
    try:
        if not json:
            return parse(kind, data, MessageLimits(len(data), MAX_FIELDS))
        if len(data) > MAX_JSON_BYTES:
            raise invalid("message", f"{len(data)} bytes of JSON: expected at most {MAX_JSON_BYTES}; send it as proto")
        if not data.lstrip().startswith(b"{"):  # json_format takes some other values for an empty message
            raise json_format.ParseError("expected a JSON object")
        if has_more_entries(data, MAX_FIELDS):  # json_format would take seconds for them
            problem = f"too many fields: expected at most {MAX_FIELDS}, counting each entry of a list"
            raise invalid("message", problem)
        return json_format.Parse(data, kind(), ignore_unknown_fields=True)
    except Refused as refused:
        error = InvalidRequest(refused.status.message)
        error.field, error.reason = refused.status.field, refused.status.reason.name
        raise error from None
    except (MalformedMessage, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("message", f"cannot be read as {kind.DESCRIPTOR.full_name}: {error}") from None


def encode(message: Message, *, json: bool) -> bytes:
    """The bytes of a message."""
    return json_format.MessageToJson(message, indent=None).encode() if json else message.SerializeToString()
