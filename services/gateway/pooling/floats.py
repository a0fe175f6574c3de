"""Writes float32 numbers as JSON, and vectors as base64."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import compress
from operator import ne

import msgspec

from services.gateway.http.api_error import invalid, shown

FLOAT_BYTES = 4
FORMATS = ("float", "base64")
"""Of vectors in an answer."""

Write = Callable[[memoryview], bytes]
"""Writes a row of little-endian float32 numbers as a JSON value."""

_decode = msgspec.json.Decoder(list[float]).decode
_encode = msgspec.json.encode


def rows_of(values: bytes, width: int) -> Iterator[memoryview]:
    """The rows of a result, each of ``width`` float32 numbers."""
    size, view = width * FLOAT_BYTES, memoryview(values)
    return (view[begin : begin + size] for begin in range(0, len(values), size))


def write_floats(row: memoryview) -> bytes:
    """A list of numbers."""
    return _encode(shortest(numbers_of(row)))


def write_base64(row: memoryview) -> bytes:
    """A string: the bytes in base64."""
    return b'"' + b64encode(row) + b'"'


def numbers_of(row: memoryview | bytes) -> list[float]:
    """The numbers of a row."""
    numbers = array("f", bytes(row))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def shortest(numbers: Sequence[float]) -> list[float]:
    """Numbers, as float32, as the floats of at most 9 digits that are read as the same float32.

    JSON would write 17 digits of a float32 as it is. Eight are enough for most; the others get nine.
    """
    given = array("f", numbers)
    found: list[float] = _decode(_format(len(given)) % tuple(given))
    if array("f", found) != given:
        for index in compress(range(len(found)), map(ne, array("f", found), given)):
            found[index] = float(f"{given[index]:.9g}")
    return found


@lru_cache(maxsize=8)
def _format(length: int) -> str:
    return f"[{','.join(['%.8g'] * length)}]"


def writer_of(encoding_format: str | None, field: str = "encoding_format") -> Write:
    """How rows are written in a format; None: as numbers. Raises ``ApiError`` for an unknown one."""
    if encoding_format not in (None, *FORMATS):
        raise invalid(field, f"{shown(encoding_format)}: expected {' or '.join(FORMATS)}")
    return write_base64 if encoding_format == "base64" else write_floats
