"""Reads a GGUF file's metadata and the places of its tensors, but not their data.

Every length, count, type and offset is checked before use, so that a damaged or hostile file causes one error and costs
no more time and memory than its size. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import array
import mmap
import os
import re
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from engine_core.errors import CheckpointError
from engine_core.model_loader.formats import is_lfs_pointer, lfs_problem
from engine_core.model_loader.gguf.files import PART
from engine_core.model_loader.gguf.types import TYPES, GgufType

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_HEADER_BYTES = 128 << 20
"""Limit of metadata plus tensor list; a vocabulary of 262,144 tokens takes about 10 MiB."""
_MOST_FIELDS = 2**14
_MOST_TENSORS = 2**17
_MOST_NAME_BYTES = 2**10
_MOST_DIMENSIONS = 4
_MOST_ALIGNMENT = 2**16
_DEFAULT_ALIGNMENT = 32
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}
"""Metadata types of fixed size: their ``struct`` codes."""

_MOST_BOOLEANS = 2**20
"""In a list, which takes many times the bytes that it has in the file."""

Value = bool | int | float | str | Sequence[bool | int | float | str]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor's place, shape and type."""

    file: Path
    name: str
    type: GgufType
    shape: tuple[int, ...]
    """In torch's order: the last dimension is contiguous."""
    offset: int
    """In bytes from the start of the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file, or all files of a split checkpoint."""

    path: Path
    """The first file."""
    metadata: Mapping[str, Value]
    """Of the first file; a list of numbers is an ``array.array``."""
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read a file, and its siblings if it is the first of a split checkpoint.

    Raises ``CheckpointError`` naming the file and the field or tensor.
    """
    first = _read_file(path)
    count = _split_field(first, "split.count")
    if count is None or count <= 1:
        return first
    named = PART.fullmatch(path.name)
    if named is None or int(named["count"]) != count:
        raise CheckpointError(
            f"{path} is one of {count} files, which are named like model-00001-of-{count:05}.gguf: give it that name"
        )
    if int(named["number"]) != 1:
        raise CheckpointError(f"{path} is one of {count} files: give the first, {_sibling(path, named, 1).name}")
    tensors = dict(first.tensors)
    for number in range(1, count + 1):
        part = first if number == 1 else _read_file(_sibling(path, named, number))
        if _split_field(part, "split.no") != number - 1 or _split_field(part, "split.count") != count:
            raise CheckpointError(f"{part.path}: split.no and split.count are not those of file {number} of {count}")
        if number > 1:
            if twice := tensors.keys() & part.tensors.keys():
                raise CheckpointError(f"{part.path}: tensor {min(twice)} is in another file, too")
            tensors |= part.tensors
    total = _split_field(first, "split.tensors.count")
    if total is not None and total != len(tensors):
        raise CheckpointError(f"{path}: split.tensors.count is {total}, but its {count} files have {len(tensors)}")
    return GgufFile(path, first.metadata, tensors)


def _sibling(path: Path, named: re.Match[str], number: int) -> Path:
    return path.with_name(f"{named['stem']}-{number:05}-of-{named['count']}.gguf")


def _split_field(file: GgufFile, name: str) -> int | None:
    value = file.metadata.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**16):
        raise CheckpointError(f"{file.path}: {name}={value!r} is not usable: expected a number below {2**16}")
    return value


def _read_file(path: Path) -> GgufFile:
    try:
        with open(path, "rb", opener=_without_waiting) as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may block forever
                raise CheckpointError(f"{path} is not a regular file")
            if opened.read(len(MAGIC)) != MAGIC:
                raise CheckpointError(lfs_problem(path) if is_lfs_pointer(path) else f"{path} is not a GGUF file")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Header(path, content, found.st_size).read()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _without_waiting(path: str, flags: int) -> int:
    """An opener that does not block on a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


class _Header:
    """The part of a file before the tensor data, read in order."""

    def __init__(self, path: Path, content: mmap.mmap, size: int) -> None:
        self._path = path
        self._content = content
        self._size = size
        """Of the file, in bytes."""
        self._end = min(size, _MOST_HEADER_BYTES)
        self._at = len(MAGIC)
        self._where = "the header"
        """What is being read, for error messages."""

    def read(self) -> GgufFile:
        (version,) = self._unpack("<I")
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
                raise CheckpointError(f"{self._path} is big-endian: convert it with gguf_convert_endian.py (llama.cpp)")
            raise CheckpointError(
                f"{self._path} has version {version} of GGUF: expected {' or '.join(map(str, _VERSIONS))}"
            )
        num_tensors, num_fields = self._unpack("<QQ")
        self._require(num_fields <= _MOST_FIELDS, f"{num_fields} fields of metadata: at most {_MOST_FIELDS}")
        self._require(num_tensors <= _MOST_TENSORS, f"{num_tensors} tensors: at most {_MOST_TENSORS}")
        metadata: dict[str, Value] = {}
        for index in range(num_fields):
            self._where = f"field {index} of the metadata"
            name = self._name()
            self._require(name not in metadata, f"the name {name!r} for a second time")
            self._where = name
            metadata[name] = self._value()
        described = self._tensors(num_tensors)
        return GgufFile(self._path, metadata, self._placed(described, self._alignment(metadata)))

    def _tensors(self, count: int) -> dict[str, tuple[GgufType, tuple[int, ...], int]]:
        """Type, shape and offset (from the start of the data) by name."""
        described: dict[str, tuple[GgufType, tuple[int, ...], int]] = {}
        for index in range(count):
            self._where = f"tensor {index}"
            name = self._name()
            self._require(name not in described, f"the name {name!r} for a second time")
            self._where = f"tensor {name}"
            (dimensions,) = self._unpack("<I")
            self._require(0 < dimensions <= _MOST_DIMENSIONS, f"{dimensions} dimensions: from 1 to {_MOST_DIMENSIONS}")
            *shape, number, offset = self._unpack(f"<{dimensions}QIQ")
            self._require(0 not in shape, f"the shape {shape[::-1]}: no dimension may be 0")
            kept = TYPES.get(number)
            if kept is None:
                raise self._problem(f"type {number}: expected one of {', '.join(map(str, TYPES))}")
            whole = shape[0] % kept.block_size == 0
            self._require(whole, f"rows of {shape[0]}: {kept.name} has blocks of {kept.block_size} numbers")
            described[name] = kept, tuple(shape[::-1]), offset
        return described

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        self._where = "general.alignment"
        value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        usable = isinstance(value, int) and 0 < value <= _MOST_ALIGNMENT and value & (value - 1) == 0
        self._require(usable, f"{value!r}: a power of two, at most {_MOST_ALIGNMENT}")
        assert isinstance(value, int)
        return value

    def _placed(
        self, described: Mapping[str, tuple[GgufType, tuple[int, ...], int]], alignment: int
    ) -> dict[str, GgufTensor]:
        """The tensors, checked not to overlap or to reach beyond the end of the file."""
        begin = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, (kept, shape, offset) in described.items():
            self._where = f"tensor {name}"
            self._require(offset % alignment == 0, f"the offset {offset}: a multiple of {alignment}")
            nbytes = kept.block_bytes
            for dimension in (*shape[:-1], shape[-1] // kept.block_size):
                nbytes *= dimension  # at most four factors below 2⁶⁴
            start = begin + offset
            if start + nbytes > self._size:
                raise CheckpointError(
                    f"{self._path}: {self._where} has {nbytes} bytes from {start} on, but the file ends at "
                    f"{self._size}: download it again"
                )
            tensors[name] = GgufTensor(self._path, name, kept, shape, start, nbytes)
        for tensor, following in pairwise(sorted(tensors.values(), key=lambda each: each.offset)):
            if tensor.offset + tensor.nbytes > following.offset:
                raise CheckpointError(f"{self._path}: the tensors {tensor.name} and {following.name} overlap")
        return tensors

    def _value(self) -> Value:
        (kind,) = self._unpack("<I")
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._list()
        if (code := _NUMBERS.get(kind)) is None:
            raise self._problem(f"a value of type {kind}, which is unknown")
        value: int | float = self._unpack(f"<{code}")[0]
        if kind != _BOOL:
            return value
        self._require(value <= 1, f"the boolean {value}: 0 or 1")
        return bool(value)

    def _list(self) -> Sequence[bool | int | float | str]:
        kind, count = self._unpack("<IQ")
        if kind == _STRING:
            self._require(8 * count <= self._end - self._at, f"a list of {count} strings, more than fit into the file")
            return self._strings(count)
        if (code := _NUMBERS.get(kind)) is None:
            raise self._problem(f"a list of values of type {kind}: numbers and strings alone may be in a list")
        width = struct.calcsize(f"<{code}")
        self._require(width * count <= self._end - self._at, f"a list of {count} numbers, more than fit into the file")
        numbers = array.array(code, self._content[self._at : self._at + width * count])
        self._at += width * count
        if kind != _BOOL:
            return numbers
        self._require(count <= _MOST_BOOLEANS, f"a list of {count} booleans: expected at most {_MOST_BOOLEANS}")
        self._require(all(each <= 1 for each in numbers), "a boolean that is neither 0 nor 1")
        return [bool(each) for each in numbers]

    def _strings(self, count: int) -> list[str]:
        """Like ``count`` calls of ``_string``, but faster: vocabularies have hundreds of thousands."""
        strings: list[str] = []
        at, end, content = self._at, self._end, self._content
        length_at = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(content, at)[0]
                if at > end:
                    raise self._problem(f"a string, number {len(strings)} of a list, that goes on beyond the header")
                strings.append(content[start:at].decode())
        except struct.error as error:
            raise self._problem(f"a list of {count} strings, which goes on beyond the file") from error
        except UnicodeDecodeError as error:
            raise self._problem(f"a string, number {len(strings)} of a list, that is not UTF-8") from error
        self._at = at
        return strings

    def _name(self) -> str:
        name = self._string(_MOST_NAME_BYTES)
        self._require(bool(name), "an empty name")
        return name

    def _string(self, most: int = _MOST_HEADER_BYTES) -> str:
        (length,) = self._unpack("<Q")
        self._require(length <= min(most, self._end - self._at), f"a string of {length} bytes")
        encoded = self._content[self._at : self._at + length]
        self._at += length
        try:
            return encoded.decode()
        except UnicodeDecodeError as error:
            raise self._problem("a string that is not UTF-8") from error

    def _unpack(self, form: str) -> tuple[int, ...]:
        size = struct.calcsize(form)
        if self._at + size > self._end:
            reason = "the file ends" if self._end == self._size else f"{_MOST_HEADER_BYTES} bytes, the most, are over"
            raise CheckpointError(f"{self._path}: {reason} within {self._where}: download it again")
        numbers = struct.unpack_from(form, self._content, self._at)
        self._at += size
        return numbers

    def _require(self, fulfilled: bool, found: str) -> None:
        if not fulfilled:
            raise self._problem(found)

    def _problem(self, found: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {self._where} has {found}; download the file again")


def shown(value: Value) -> str:
    """The beginning of ``value`` for an error, made from no more than that."""
    if isinstance(value, str):
        return f"{value[:80]!r:.80}"
    return f"{list(value[:80]) if isinstance(value, Sequence) else value!r:.80}"
