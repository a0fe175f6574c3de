"""The places of tensors in a file of ``torch.save``: a zip archive whose entries are stored as they are.

Its ``data.pkl`` says which tensors there are (see ``pickled_tensors``), and each storage is an entry of plain bytes. So
tensors are memory-mapped like those of safetensors, and everything that reads them is the same.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_core.errors import CheckpointError
from engine_core.model_loader.formats import is_lfs_pointer, lfs_problem
from engine_core.model_loader.pickled_tensors import MOST_BYTES, PickledTensor, RefusedPickleError, pickled_tensors
from engine_core.model_loader.stored_tensor import TYPES, StoredTensor

_MOST_DIRECTORY = 2**22
"""Bytes of an archive's list of entries: a storage takes about 80."""
_HEADER = struct.Struct("<4s22xHH")
"""Before an entry: its signature, and the lengths of its name and of what else is before its bytes."""
_SIGNATURE = b"PK\x03\x04"
_AFTER_ENTRY = (b"PK\x07\x08", _SIGNATURE, b"PK\x01\x02", b"PK\x06\x06", b"PK\x05\x06")
"""Signatures of what may follow an entry's bytes."""
_ENCRYPTED = 1
_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of a file from before torch 1.6."""
_MOST_OF_BYTE_ORDER = 16
_TYPE_NAMES = {dtype: name for name, dtype in TYPES.items()}
_REMEDY = (
    "download it again, or load the model in transformers, if you trust it, and save it with save_pretrained, which "
    "writes safetensors"
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The place of an entry's bytes in the archive."""

    start: int
    nbytes: int
    crc: int


def torch_tensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors in one file; reads no weights, and executes nothing.

    Raises ``CheckpointError`` for a file that is damaged, that has anything but tensors, or that is in another format.
    """
    try:
        with _BoundedFile(file) as opened:
            archive = _entries(opened)
            tensors = pickled_tensors(_pickle(opened, archive))
        places = {f"data/{tensor.storage.key}" for tensor in tensors.values()}
        if lost := min(places - archive.keys(), default=None):
            raise RefusedPickleError(f"has no entry {lost}, which tensors refer to")
        return {name: _stored(file, name, tensor, archive) for name, tensor in tensors.items()}
    except RefusedPickleError as error:
        if is_lfs_pointer(file):
            raise CheckpointError(lfs_problem(file)) from error
        raise CheckpointError(f"{file} {error}; {_REMEDY}") from error
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


class _BoundedFile(io.FileIO):
    """A file of which little is read at once, whatever it says itself."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MOST_DIRECTORY:
            raise RefusedPickleError(f"has a list of entries of {size} bytes: expected at most {_MOST_DIRECTORY}")
        return super().read(-1 if size is None else size) or b""


def _entries(opened: _BoundedFile) -> dict[str, _Entry]:
    """The archive's entries, by their names without its folder."""
    first = opened.read(len(_LEGACY))
    if first == _LEGACY:
        raise RefusedPickleError("is in the format from before torch 1.6, which is not read")
    if not first.startswith(_SIGNATURE):
        raise RefusedPickleError("does not begin as a file of torch.save does")
    try:
        infos = zipfile.ZipFile(opened).infolist()
    except (zipfile.BadZipFile, ValueError, RuntimeError, struct.error, OverflowError, OSError) as error:
        raise RefusedPickleError(f"has a damaged list of entries or is truncated ({error})") from error
    names = [info.filename for info in infos]
    if len(set(names)) < len(names):
        raise RefusedPickleError("has two entries of one name")
    pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise RefusedPickleError(f"has {len(pickles)} files data.pkl: expected one")
    folder = pickles[0].removesuffix("data.pkl")
    if outside := next((name for name in names if not name.startswith(folder)), None):
        raise RefusedPickleError(f"has an entry {outside[:100]!r} outside its folder {folder[:100]!r}")
    if f"{folder}constants.pkl" in names:
        raise RefusedPickleError("is a TorchScript program, not a dictionary of tensors")
    return {name.removeprefix(folder): _entry(opened, info) for name, info in zip(names, infos, strict=True)}


def _entry(opened: _BoundedFile, info: zipfile.ZipInfo) -> _Entry:
    """Its place, once what is before it and behind it is there, too."""
    name = info.filename[:100]
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & _ENCRYPTED:
        raise RefusedPickleError(f"has an entry {name!r} that is compressed or encrypted, which is not read")
    header = _read_at(opened, info.header_offset, _HEADER.size)
    if len(header) == _HEADER.size:
        signature, *lengths = _HEADER.unpack(header)
        start = info.header_offset + _HEADER.size + sum(lengths)
        if signature == _SIGNATURE and _read_at(opened, start + info.file_size, 4) in _AFTER_ENTRY:
            return _Entry(start, info.file_size, info.CRC)
    raise RefusedPickleError(f"is damaged or truncated around its entry {name!r}")


def _read_at(opened: _BoundedFile, start: int, count: int) -> bytes:
    return os.pread(opened.fileno(), count, start) if 0 <= start < 2**63 else b""


def _pickle(opened: _BoundedFile, archive: Mapping[str, _Entry]) -> bytes:
    """The archive's pickle, whole and of this machine's byte order."""
    order = archive.get("byteorder")
    if order is not None and _read_at(opened, order.start, min(order.nbytes, _MOST_OF_BYTE_ORDER)) != b"little":
        raise RefusedPickleError("has numbers in another byte order than little-endian")
    entry = archive["data.pkl"]
    if entry.nbytes > MOST_BYTES:
        raise RefusedPickleError(f"has a pickle of {entry.nbytes} bytes: expected at most {MOST_BYTES}")
    content = _read_at(opened, entry.start, entry.nbytes)
    if zlib.crc32(content) != entry.crc:
        raise RefusedPickleError("has a damaged pickle (its checksum is another)")
    return content


def _stored(file: Path, name: str, tensor: PickledTensor, archive: Mapping[str, _Entry]) -> StoredTensor:
    storage, entry = tensor.storage, archive[f"data/{tensor.storage.key}"]
    if entry.nbytes != storage.nbytes:
        raise RefusedPickleError(
            f"has {entry.nbytes} bytes for a storage of {storage.count} numbers in {storage.dtype}, which take "
            f"{storage.nbytes}"
        )
    size = tensor.dtype.itemsize
    strides = None if _is_in_order(tensor) else tuple(size * stride for stride in tensor.strides)
    type_name = _TYPE_NAMES.get(tensor.dtype, str(tensor.dtype))
    nbytes = size * math.prod(tensor.shape)
    start = entry.start + (size * tensor.offset if nbytes else 0)
    return StoredTensor(file, name, tensor.shape, type_name, start, nbytes, strides)


def _is_in_order(tensor: PickledTensor) -> bool:
    """Whether its numbers follow each other in the order of their indices."""
    if 0 in tensor.shape:
        return True
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
