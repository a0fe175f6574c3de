"""Writes an array of numpy's file format, without numpy and without knowing the number of rows beforehand."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from types import TracebackType
from typing import Self

_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER_BYTES = 128
"""Of the whole header, a multiple of 64; the shape of any file fits in."""


class NpyFile:
    """An array of 32-bit floats [rows, width], written as rows come. A file that is not ended well has no header."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("wb")  # noqa: SIM115 (closed by __exit__)
        self._file.write(bytes(_HEADER_BYTES))
        self._numbers = self._width = 0

    def add(self, values: array[float], width: int) -> None:
        """Write rows, one after the other in ``values``."""
        self._width = width
        self._numbers += len(values)
        if sys.byteorder == "big":
            values = values[:]
            values.byteswap()
        values.tofile(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                self._file.seek(0)
                self._file.write(self._header())

    def _header(self) -> bytes:
        rows = self._numbers // self._width if self._width else 0
        described = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {self._width}), }}".encode()
        room = _HEADER_BYTES - len(_MAGIC) - 2
        return _MAGIC + room.to_bytes(2, "little") + described.ljust(room - 1) + b"\n"
