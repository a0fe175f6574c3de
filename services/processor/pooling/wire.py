"""Writes protobuf's fields of large bytes by hand: in a message, they would be copied several times."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.descriptor import Descriptor

_LENGTH_DELIMITED = 2
"""The wire type of bytes and messages."""


def field(message: Descriptor, name: str, *parts: bytes) -> Sequence[bytes]:
    """The field ``name`` with the ``parts`` one after the other, as it stands among a message's other fields."""
    tag = message.fields_by_name[name].number << 3 | _LENGTH_DELIMITED
    return (_varint(tag), _varint(sum(map(len, parts))), *parts)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
