"""An adapter's two files, which may be damaged or hostile in any way: read into memory, within bounds.

Nothing is mapped: a file that is cut while it is mapped ends the process.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from engine_core.errors import AdapterError
from engine_core.lora.peft_config import CONFIG

WEIGHTS = "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"
_MOST_OF_CONFIG = 4 << 20
"""Bytes: most have a thousand."""
_MOST_METADATA = 1 << 20
_MOST_PER_TENSOR = 512
"""Bytes of a header for each tensor that an adapter of the model may have."""
_MOST_DIMENSIONS = 8
_LARGEST_NUMBER = 2**48
_LFS = b"version https://git-lfs"
_TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""By safetensors' names."""
_AGAIN = "copy the adapter again"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place, shape and type in the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """In bytes from the start of the file."""
    nbytes: int


def read_config(directory: Path) -> dict[str, Any]:
    """The object in ``adapter_config.json``. Raises ``AdapterError``."""
    path = directory / CONFIG
    with _regular(path) as (file, size):
        if size > _MOST_OF_CONFIG:
            raise AdapterError(f"{path.name} has {size} bytes, above the limit of {_MOST_OF_CONFIG}: {_AGAIN}")
        return _object(path, _bytes(path, file, size))


class TensorFile:
    """The tensors of an open ``adapter_model.safetensors``."""

    def __init__(self, path: Path, file: FileIO, size: int, most_tensors: int) -> None:
        """``most_tensors``: as many as the model may need. Raises ``AdapterError``."""
        self._path = path
        self._file = file
        self.tensors = _tensors(path, file, size, most_tensors)
        """In the order of their bytes."""

    def read(self, tensor: StoredTensor) -> tuple[torch.Tensor, memoryview]:
        """A tensor, and its bytes. Raises ``AdapterError`` if the file has been cut meanwhile."""
        numbers = torch.empty(tensor.shape, dtype=tensor.dtype)
        content = numbers.view(-1).view(torch.uint8).numpy().data
        self._file.seek(tensor.start)
        _fill(self._path, self._file, content)
        return numbers, content


@contextmanager
def open_tensors(directory: Path, most_tensors: int) -> Iterator[TensorFile]:
    """The tensors of the adapter in ``directory``. Raises ``AdapterError``."""
    path = directory / WEIGHTS
    with _regular(path) as (file, size):
        yield TensorFile(path, file, size, most_tensors)


@contextmanager
def _regular(path: Path) -> Iterator[tuple[FileIO, int]]:
    """An open file and its size in bytes. What may block, as a pipe, or has no end, as a device, is refused."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise AdapterError(f"{path.name} is not a regular file: {_AGAIN}")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise AdapterError(_missing(path.parent, path.name)) from error
    except (OSError, ValueError) as error:
        raise AdapterError(f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with FileIO(descriptor) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise AdapterError(f"{path.name} is not a regular file: {_AGAIN}")
        yield file, found.st_size


def _missing(directory: Path, name: str) -> str:
    expected = f"expected {CONFIG} and {WEIGHTS}, as PEFT's save_pretrained writes them"
    if not directory.is_dir():
        return f"there is no such directory: {expected}"
    if name == WEIGHTS and (directory / _PICKLED).exists():
        return (
            f"the tensors are in {_PICKLED}, which loading may execute and is not read: load the adapter with PEFT, "
            f"and save_pretrained writes {WEIGHTS}"
        )
    return f"there is no {name}: {expected}"


def _bytes(path: Path, file: FileIO, size: int) -> bytearray:
    content = bytearray(size)
    _fill(path, file, memoryview(content))
    return content


def _fill(path: Path, file: FileIO, content: memoryview) -> None:
    done = 0
    while done < len(content):
        try:
            count = file.readinto(content[done:])
        except OSError as error:
            raise AdapterError(f"{path.name} cannot be read: {error.strerror}") from error
        if not count:
            raise AdapterError(f"{path.name} ends too early, or has been cut while it was read: {_AGAIN}")
        done += count


def _object(path: Path, content: bytearray) -> dict[str, Any]:
    """The JSON object in ``content``; no name may be twice in one."""

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"{name!r:.80} is there twice")
        return found

    try:
        found = json.loads(content.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        problem = "it is a pointer of Git LFS: run git lfs pull" if content.startswith(_LFS) else f"{error}: {_AGAIN}"
        raise AdapterError(f"{path.name} is not JSON: {problem}") from error
    if not isinstance(found, dict):
        raise AdapterError(f"{path.name} does not hold a JSON object: {_AGAIN}")
    return found


def _tensors(path: Path, file: FileIO, size: int, most_tensors: int) -> tuple[StoredTensor, ...]:
    """The tensors that the header of a safetensors file names, after checks that they fill it exactly."""
    start = _bytes(path, file, min(size, 8))
    if len(start) < 8 or start.startswith(_LFS[:8]):
        problem = "a pointer of Git LFS: run git lfs pull" if start.startswith(_LFS[:8]) else f"too short: {_AGAIN}"
        raise AdapterError(f"{path.name} is no safetensors file, but {problem}")
    length = int.from_bytes(start, "little")
    if length > (most := _MOST_METADATA + _MOST_PER_TENSOR * most_tensors):
        raise AdapterError(
            f"{path.name} has a header of {length} bytes, above the limit of {most} for adapters of this model: it is "
            "damaged, or of another model"
        )
    if length > size - 8:
        raise AdapterError(f"{path.name} ends too early: it has {size} bytes, and a header of {length}: {_AGAIN}")
    header = _object(path, _bytes(path, file, length))
    header.pop("__metadata__", None)
    if len(header) > most_tensors:
        raise AdapterError(
            f"{path.name} has {len(header)} tensors, above the limit of {most_tensors} for adapters of this model: "
            "it is of another model"
        )
    found = sorted(
        (_stored(path, name, entry, 8 + length) for name, entry in header.items()), key=lambda each: each.start
    )
    end = 8 + length
    for each in found:
        if each.start != end:
            raise AdapterError(
                f"{path.name}: {each.name!r:.200} does not begin where the tensor before it ends: {_AGAIN}"
            )
        end += each.nbytes
    if end != size:
        raise AdapterError(f"{path.name} has {size} bytes, and its tensors need {end}: {_AGAIN}")
    return tuple(found)


def _stored(path: Path, name: str, entry: object, first: int) -> StoredTensor:
    match entry:
        case {"dtype": str(type_name), "shape": [*shape], "data_offsets": [start, end]} if len(
            shape
        ) <= _MOST_DIMENSIONS and all(
            type(each) is int and 0 <= each < _LARGEST_NUMBER for each in (*shape, start, end)
        ):
            pass
        case _:
            raise AdapterError(f"{path.name}: the header's entry of {name!r:.200} is damaged: {_AGAIN}")
    if (dtype := _TYPES.get(type_name)) is None:
        raise AdapterError(
            f"{path.name}: {name!r:.200} is of type {type_name!r:.40}; expected one of {', '.join(_TYPES)}"
        )
    if math.prod(shape) * dtype.itemsize != end - start:
        raise AdapterError(
            f"{path.name}: {name!r:.200} has {end - start} bytes, which its shape {shape!r:.80} does not need: {_AGAIN}"
        )
    return StoredTensor(name, dtype, tuple(shape), first + start, end - start)
