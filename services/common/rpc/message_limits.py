"""Limits on protobuf messages, checked before they are parsed: a few bytes on the wire may become many objects.

An empty sub-message takes 2 bytes on the wire and about 100 in memory. So a message is limited in its bytes and in its
fields, including those of sub-messages; they are counted in the wire format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from services.ring.errors import Reason, Refused, invalid_field

_M = TypeVar("_M", bound=Message)

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MIN_FIELD_BYTES = 2
_MAX_VARINT_BYTES = 10
_CHEAP_FIELDS, _CHEAP_BYTES = 256, 64 << 10


class MalformedMessage(Exception):
    """A message could not be parsed as its type. The call interceptor turns it into INVALID_ARGUMENT."""


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """How large a message may be."""

    max_bytes: int
    max_fields: int
    """Limit on the fields of the message and all its sub-messages. Each entry of a repeated field counts; a packed
    array counts as one."""
    reason: str = ""
    """Explains ``max_bytes`` in errors."""


SMALL_MESSAGE = MessageLimits(max_bytes=64 << 10, max_fields=1024)
"""Limits for messages with a name and a few numbers."""


def parse(kind: type[_M], data: bytes, limits: MessageLimits) -> _M:
    """The message in ``data``.

    Raises ``Refused`` if it is too large, with the name of the field that has too many entries, or
    ``MalformedMessage``.
    """
    if len(data) > limits.max_bytes:
        most = f"{limits.max_bytes}, {limits.reason}" if limits.reason else str(limits.max_bytes)
        raise invalid_field("message", f"{len(data)} bytes: expected at most {most}", reason=Reason.TOO_LARGE)
    if len(data) > limits.max_fields * _MIN_FIELD_BYTES:
        _check_fields(data, cast("Descriptor", kind.DESCRIPTOR), limits.max_fields)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MalformedMessage(str(error)) from None


def is_cheap_to_parse(kind: type[Message], data: bytes) -> bool:
    """Whether checking and parsing ``data`` takes well under a millisecond.

    Otherwise do it in a thread: thousands of clients may send such messages at a time.
    """
    if len(data) > _CHEAP_BYTES:
        return False
    try:
        _check_fields(data, cast("Descriptor", kind.DESCRIPTOR), _CHEAP_FIELDS)
    except (Refused, MalformedMessage):  # fields after the fault were not counted, but protobuf may parse them
        return False
    return True


def _check_fields(data: bytes, kind: Descriptor, max_fields: int) -> None:
    """Count the fields, those of sub-messages included; raises as ``parse`` does."""
    left, position, end = max_fields, 0, len(data)
    nested = _nested(kind)
    outer: list[tuple[int, Descriptor]] = []
    try:
        while True:
            while position >= end:
                if not outer:
                    return
                end, kind = outer.pop()
                nested = _nested(kind)
            tag, position = _varint(data, position)
            left -= 1
            if left < 0:
                raise _too_many([one for _, one in outer] + [kind], tag >> 3, max_fields)
            wire_type = tag & 7
            if wire_type == _DELIMITED:
                length, position = _varint(data, position)
                if position + length > end:
                    raise IndexError
                if (inner := nested.get(tag >> 3)) is None:
                    position += length
                else:
                    outer.append((end, kind))
                    end, kind, nested = position + length, inner, _nested(inner)
            elif wire_type == _VARINT:
                _, position = _varint(data, position)
            else:
                position += _FIXED_BYTES[wire_type]
    except LookupError:  # the message ends within a field, or has a group, which the contract does not use
        raise MalformedMessage("a field is cut off, or has an unsupported wire type") from None


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at ``position``, and the position after it."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise LookupError


@cache
def _nested(kind: Descriptor) -> dict[int, Descriptor]:
    """Types of the sub-message fields of ``kind``, keyed by field number."""
    return {field.number: field.message_type for field in kind.fields if field.message_type is not None}


def _too_many(kinds: list[Descriptor], number: int, max_fields: int) -> Refused:
    """The refusal of a message that exceeds the limit at field ``number`` of the last of ``kinds``.

    ``kinds`` are the nested message types, outermost first.
    """
    names = []
    for kind, inner in pairwise(kinds):
        names.append(next(field.name for field in kind.fields if field.message_type is inner))
    last = kinds[-1].fields_by_number.get(number)
    path = ".".join([*names, last.name if last is not None else str(number)])
    problem = f"the message has too many fields: expected at most {max_fields}, counting each entry of a list"
    return invalid_field(path, problem, reason=Reason.TOO_LARGE)
