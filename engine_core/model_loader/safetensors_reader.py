"""Weights in safetensors or PyTorch's files, single or sharded: memory-mapped, and checked for names and shapes before
reading.
"""

from __future__ import annotations

import json
import math
import mmap
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from engine_core.errors import CheckpointError
from engine_core.garbage import no_garbage_collected
from engine_core.model_loader.digest import Digest, RankDigest, TakenBytes
from engine_core.model_loader.expected import ExpectedTensors, check_tensors, some
from engine_core.model_loader.formats import is_lfs_pointer, lfs_problem, missing_weights
from engine_core.model_loader.stored_tensor import BYTES, FLOAT_TYPES, TYPES, StoredTensor
from engine_core.model_loader.torch_reader import torch_tensors
from engine_core.weights.source import ProgressCallback, Staging, TensorRows

_MAPPED_AT_ONCE = 2**28
"""Bytes read before mapped pages are released: until then they count as this process's memory."""
_ALIGNED_AT_ONCE = 8
"""Number of aligned copies kept of tensors at unaligned offsets: a layer takes rows of a few tensors in turns."""
_MOST_OF_INDEX = 2**26
"""Bytes: the largest published ones have some 10 MB."""
_SHORT = 2
"""Bytes per number of the types that ``take_table`` does not convert."""


@dataclass(frozen=True, slots=True)
class _Format:
    """The names of a checkpoint's files in transformers' format, and what reads one."""

    name: str
    single: str
    index: str
    tensors_of: Callable[[Path], dict[str, StoredTensor]]

    def is_in(self, directory: Path) -> bool:
        return (directory / self.single).is_file() or (directory / self.index).is_file()


def find_tensors(directory: Path, load_format: str = "auto") -> dict[str, StoredTensor]:
    """Every tensor in a checkpoint's files, of those that ``load_format`` allows; reads no weights.

    Raises ``CheckpointError`` when a file is missing or damaged, or when files and index disagree.
    """
    if (files := _format_in(directory, load_format)) is None:
        raise CheckpointError(missing_weights(directory, load_format))
    if (directory / files.single).is_file():
        return files.tensors_of(directory / files.single)
    index = _read_index(directory / files.index, files.name)
    there = {entry.name for entry in directory.iterdir() if entry.is_file()}
    found: dict[str, StoredTensor] = {}
    for shard in sorted(set(index.values())):
        if shard not in there:
            problem = f"{directory / files.index} names {shard!r}, which is not a file beside it"
            raise CheckpointError(f"{problem}: download the checkpoint again")
        with no_garbage_collected():  # a few hundred new objects would trigger a full collection
            tensors = files.tensors_of(directory / shard)
        if twice := found.keys() & tensors.keys():
            raise CheckpointError(f"{directory}: tensors in more than one file: {some(twice)}")
        found |= tensors
    if lost := [name for name, shard in index.items() if name not in found or found[name].file.name != shard]:
        raise CheckpointError(f"{directory / files.index}: tensors that are not in the file it names: {some(lost)}")
    return found


def has_tensors(directory: Path, load_format: str = "auto") -> bool:
    """Whether ``find_tensors`` has something to read, or to refuse."""
    return any(directory.glob("*.safetensors")) or _format_in(directory, load_format) is not None


def conversion_advice(directory: Path, load_format: str) -> str:
    """Advice to convert a checkpoint in PyTorch's files; empty for others."""
    if (files := _format_in(directory, load_format)) is None or files.name != "PyTorch":
        return ""
    return (
        f"its weights are in PyTorch's {files.single}, which other programs execute: save_pretrained of transformers "
        "converts them to safetensors"
    )


def _format_in(directory: Path, load_format: str) -> _Format | None:
    """The format that is read; safetensors come first."""
    allowed = [_FORMATS[load_format]] if load_format in _FORMATS else _FORMATS.values()
    return next((files for files in allowed if files.is_in(directory)), None)


class SafetensorsWeights:
    """Reads a checkpoint's tensors, after checking that they are exactly those a model needs."""

    make_quantized = None

    def __init__(
        self,
        directory: Path,
        expected: ExpectedTensors,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: ProgressCallback | None = None,
        digest: Digest | None = None,
        load_format: str = "auto",
        beside: Mapping[str, StoredTensor] | None = None,
    ) -> None:
        """``beside``: tensors of other directories, by their names in the model.

        Tensors taken are added to ``digest``: whole, or to a ``RankDigest`` only the bytes taken.

        Raises ``CheckpointError`` naming missing, unexpected, mis-shaped and contradicting tensors.
        """
        tensors = {**find_tensors(directory, load_format), **(beside or {})}
        found = {name: each for name, each in tensors.items() if not expected.is_left_out(name)}
        self._tensors = {expected.renamed(name): tensor for name, tensor in found.items()}
        if twice := [name for name in found if self._tensors[expected.renamed(name)].name != name]:
            raise CheckpointError(f"{directory}: tensors that are there twice, under two names: {some(twice)}")
        self._files: dict[Path, mmap.mmap] = {}
        self._aligned: dict[str, memoryview] = {}
        shapes = {name: tensor.shape for name, tensor in self._tensors.items() if not self._is_zero(name, expected)}
        check_tensors(directory, shapes, expected, "config.json")
        types = TYPES if expected.quantized else FLOAT_TYPES | BYTES
        wrong = (self._tensors[name] for name in expected.shapes if self._tensors[name].type_name not in types)
        if (first := next(wrong, None)) is not None:
            raise _wrong_type(first, types)
        self._expected = expected
        self.dtype = dtype
        self._staging = Staging(dtype, device)
        self._device = device
        self._on_progress = on_progress
        self._digest = digest
        self._counted: set[str] = set()
        """Tensors taken in parts that are already counted whole."""
        self._mapped = 0
        self._done = 0
        self._total = int(sum(self._tensors[name].nbytes for name in expected.shapes) * expected.share)
        for name in self._tensors.keys() - expected.shapes.keys():
            if (original := expected.repeats(name)) is not None:
                self._require_equal(name, original)

    def _is_zero(self, name: str, expected: ExpectedTensors) -> bool:
        """Whether the model does without a tensor because all its numbers are zero."""
        if name in expected.shapes or not expected.must_be_zero(name):
            return False
        return not self._mapped_tensor(name).any()

    def _require_equal(self, name: str, original: str) -> None:
        stored, expected = self._tensors[name], self._tensors[original]
        same_kind = stored.shape == expected.shape and stored.type_name == expected.type_name
        if not same_kind or self._content(name) != self._content(original):
            raise CheckpointError(
                f"{stored.file}: {stored.name} differs from {expected.name}, but config.json says that they are one "
                "(tie_word_embeddings); set that to false, or remove one of the two tensors"
            )
        self._let_go()  # both were read whole

    def hash_all(self, stop: threading.Event) -> None:
        """Add all tensors to the digest without taking them, until ``stop`` is set."""
        for name in self._expected.shapes:
            if stop.is_set():
                return
            self._let_go_of_many()
            self._count(name, 0, self._tensors[name].nbytes)

    def differs(self, taken: TakenBytes) -> bool:
        """Whether the same range has other bytes here."""
        stored = self._tensors[taken.name]
        content = self._content(taken.name)[taken.start : taken.start + taken.count]
        return stored.dtype is None or taken != TakenBytes.of(
            taken.name, stored.dtype, stored.shape, taken.start, content
        )

    def take(self, *tensors: str | TensorRows) -> torch.Tensor:
        views = self._views(tensors)
        return self._converted([views[each] for each in tensors])

    def take_table(self, tensor: str | TensorRows) -> torch.Tensor:
        view = self._views([tensor])[tensor]
        return view.to(self._device) if view.dtype.itemsize == _SHORT else self._converted([view])

    def _views(self, tensors: Iterable[str | TensorRows]) -> dict[str | TensorRows, torch.Tensor]:
        """Views of mapped files."""
        self._let_go_of_many()
        views: dict[str | TensorRows, torch.Tensor] = {}
        for each in dict.fromkeys(tensors):
            if isinstance(each, TensorRows):
                views[each] = self._rows(each.name, each.rows)
            else:
                views[each] = self._view(each)
        if self._on_progress is not None:
            self._on_progress(min(self._done, self._total), self._total)
        return views

    def _let_go_of_many(self) -> None:
        if self._mapped > _MAPPED_AT_ONCE:
            self._let_go()

    def _let_go(self) -> None:
        """Release the pages read so far; existing views read them again on access."""
        for mapped in self._files.values():
            mapped.madvise(mmap.MADV_DONTNEED)
        self._mapped = 0

    def _converted(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """``parts`` joined along the first dimension, in the model's type and on its device."""
        if len(parts) > 1:
            rows = [len(part) for part in parts]
            joined = self._staging.make((sum(rows), *parts[0].shape[1:]))
            for part, place in zip(parts, torch.split(joined, rows), strict=True):
                place.copy_(part)
            parts = [joined]
        elif parts[0].dtype != self.dtype or parts[0].device != self._device:
            parts = [self._staging.make(tuple(parts[0].shape)).copy_(parts[0])]
        return parts[0]

    def take_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
        self._let_go_of_many()
        row = self._mapped_tensor(name)[index]
        part = row if rows is None else row[rows.start : rows.stop]
        first = index * row.numel() + (0 if rows is None else rows.start * math.prod(row.shape[1:]))
        self._count_part(name, first * row.itemsize, part.nbytes)
        return self._converted([part])

    def _rows(self, name: str, rows: range) -> torch.Tensor:
        """Neighbouring rows of a tensor, perhaps all."""
        shape = self._tensors[name].shape
        if len(rows) == shape[0]:
            return self._view(name)
        part = self._mapped_tensor(name)[rows.start : rows.stop]
        self._count_part(name, rows.start * math.prod(shape[1:]) * part.itemsize, part.nbytes)
        return part

    def take_stored(self, name: str, *place: int | slice) -> torch.Tensor:
        self._let_go_of_many()
        tensor = self._mapped_tensor(name, TYPES)
        part = tensor[place]
        if tensor.nbytes and part.is_contiguous():
            self._count_part(name, part.data_ptr() - tensor.data_ptr(), part.nbytes)
        else:  # neighbouring columns: in every page of the tensor
            self._count_part(name, 0, tensor.nbytes)
        return part

    def _count_part(self, name: str, start: int, nbytes: int) -> None:
        """Count bytes as taken: just these for a ``RankDigest``, else, once, the whole tensor, as all parts follow."""
        self._mapped += nbytes
        whole = self._tensors[name].nbytes
        if nbytes < whole and isinstance(self._digest, RankDigest):
            self._count(name, start, nbytes)
        elif name not in self._counted:
            self._counted.add(name)
            self._count(name, 0, whole)

    def take_float32(self, name: str) -> torch.Tensor:
        return self._view(name).to(self._device, torch.float32, copy=True)

    def _content(self, name: str) -> memoryview:
        """A tensor's bytes: in the mapped file, or in a copy if they are in another order there."""
        stored = self._tensors[name]
        if stored.file not in self._files:
            self._files[stored.file] = _mapped(stored.file)
        mapped = memoryview(self._files[stored.file])
        if stored.strides is None:
            return mapped[stored.start : stored.start + stored.nbytes]
        return self._copied(name, lambda: _in_order(stored, mapped))

    def _view(self, name: str, types: Mapping[str, torch.dtype] = FLOAT_TYPES) -> torch.Tensor:
        """A tensor in the mapped file; counts as taken whole."""
        tensor = self._mapped_tensor(name, types)
        self._count(name, 0, self._tensors[name].nbytes)
        return tensor

    def _mapped_tensor(self, name: str, types: Mapping[str, torch.dtype] = FLOAT_TYPES) -> torch.Tensor:
        stored = self._tensors[name]
        if (dtype := types.get(stored.type_name)) is None:
            raise _wrong_type(stored, types)
        try:
            content = self._content(name)
            aligned = content if stored.start % dtype.itemsize == 0 else self._copied(name, lambda: _copy(content))
            numbers = torch.frombuffer(aligned, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            return numbers.view(stored.shape)
        except (RuntimeError, ValueError, OSError) as error:
            raise CheckpointError(f"{stored.file}: cannot read {name}: {error}") from error

    def _copied(self, name: str, copy: Callable[[], memoryview]) -> memoryview:
        if name not in self._aligned:
            if len(self._aligned) == _ALIGNED_AT_ONCE:
                self._aligned.clear()
            self._aligned[name] = copy()
        return self._aligned[name]

    def _count(self, name: str, start: int, nbytes: int) -> None:
        """Add bytes of a tensor to digest and progress."""
        stored = self._tensors[name]
        if self._digest is not None and stored.dtype is not None:
            content = self._content(name)[start : start + nbytes]
            self._digest.add(name, stored.dtype, stored.shape, start, content)
        self._mapped += nbytes
        self._done += nbytes


def _read_index(path: Path, name: str) -> dict[str, str]:
    """An index file's map from tensors to files."""
    try:
        if (size := path.stat().st_size) > _MOST_OF_INDEX:
            problem = f"{path} has {size} bytes: expected at most {_MOST_OF_INDEX}"
            raise CheckpointError(f"{problem}; download the checkpoint again")
        weight_map = json.loads(path.read_text("utf-8"))["weight_map"]
        if not all(isinstance(shard, str) for shard in weight_map.values()) or not weight_map:
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if is_lfs_pointer(path):
            raise CheckpointError(lfs_problem(path)) from error
        raise CheckpointError(f"{path} is not an index of {name} files") from error
    return dict(weight_map)


def _mapped(file: Path) -> mmap.mmap:
    """A private (copy-on-write) mapping of a file."""
    # For thousands of small tensors, safetensors' own reader takes longer than everything else, and every torch
    # operation counts.
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)


def _copy(content: memoryview) -> memoryview:
    return memoryview(bytearray(content))


def _in_order(stored: StoredTensor, mapped: memoryview) -> memoryview:
    """A tensor's bytes in the order of its indices."""
    assert stored.strides is not None
    number = np.dtype(f"V{stored.nbytes // math.prod(stored.shape)}")
    numbers = np.ndarray(stored.shape, number, mapped, stored.start, stored.strides)
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


def _tensors_of(file: Path) -> dict[str, StoredTensor]:
    """The tensors in one file's header. Raises ``CheckpointError``, also for a file shorter than its header says."""
    try:
        opened = file.open("rb")
    except OSError as error:  # of which safetensors would say that there is no such file
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    try:
        with opened, safe_open(file, framework="pt"):  # which checks size and header
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
    except (SafetensorError, OSError) as error:
        if is_lfs_pointer(file):
            raise CheckpointError(lfs_problem(file)) from error
        raise CheckpointError(f"{file} is damaged or not a safetensors file ({error}): download it again") from error
    header.pop("__metadata__", None)
    return {
        name: StoredTensor(file, name, tuple(entry["shape"]), entry["dtype"], 8 + size + start, end - start)
        for name, entry in header.items()
        for start, end in [entry["data_offsets"]]
    }


def _wrong_type(tensor: StoredTensor, types: Iterable[str]) -> CheckpointError:
    return CheckpointError(
        f"{tensor.file}: {tensor.name} is of type {tensor.type_name}; expected one of {', '.join(types)}"
    )


_FORMATS = {
    "safetensors": _Format("safetensors", "model.safetensors", "model.safetensors.index.json", _tensors_of),
    "pt": _Format("PyTorch", "pytorch_model.bin", "pytorch_model.bin.index.json", torch_tensors),
}
"""By ``LoadConfig.load_format``; auto takes the first that is there."""
