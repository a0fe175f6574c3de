"""Weights in safetensors files, single or sharded: memory-mapped, and checked for names and shapes before reading."""

from __future__ import annotations

import json
import math
import mmap
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine_core.errors import CheckpointError
from engine_core.garbage import no_garbage_collected
from engine_core.model_loader.digest import Digest, RankDigest, TakenBytes
from engine_core.model_loader.expected import ExpectedTensors, check_tensors, some
from engine_core.model_loader.formats import is_lfs_pointer, lfs_problem, missing_weights
from engine_core.weights.source import ProgressCallback, Staging, TensorRows

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOAT_TYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_BYTES = {"U8": torch.uint8}
_TYPES = (
    _FLOAT_TYPES
    | _BYTES
    | {
        "I8": torch.int8,
        "I32": torch.int32,
        "I64": torch.int64,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
    }
)
_MAPPED_AT_ONCE = 2**28
"""Bytes read before mapped pages are released: until then they count as this process's memory."""
_ALIGNED_AT_ONCE = 8
"""Number of aligned copies kept of tensors at unaligned offsets: a layer takes rows of a few tensors in turns."""
_SHORT = 2
"""Bytes per number of the types that ``take_table`` does not convert."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place, shape and type."""

    file: Path
    name: str
    """In the file."""
    shape: tuple[int, ...]
    type_name: str
    """Any of safetensors' types."""
    start: int
    """In bytes from the start of the file."""
    nbytes: int

    @property
    def dtype(self) -> torch.dtype | None:
        """None for an unsupported type."""
        return _TYPES.get(self.type_name)


def find_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor in a checkpoint's files; reads no weights.

    Raises ``CheckpointError`` when a file is missing or damaged, or when files and index disagree.
    """
    if (directory / _SINGLE).is_file():
        return _tensors_of(directory / _SINGLE)
    if not (directory / _INDEX).is_file():
        raise CheckpointError(missing_weights(directory))
    index = _read_index(directory / _INDEX)
    files = {entry.name for entry in directory.iterdir() if entry.is_file()}
    found: dict[str, StoredTensor] = {}
    for shard in sorted(set(index.values())):
        if shard not in files:
            raise CheckpointError(
                f"{directory / _INDEX} names {shard!r}, which is not a file beside it: download the checkpoint again"
            )
        with no_garbage_collected():  # a few hundred new objects would trigger a full collection
            tensors = _tensors_of(directory / shard)
        if twice := found.keys() & tensors.keys():
            raise CheckpointError(f"{directory}: tensors in more than one file: {some(twice)}")
        found |= tensors
    if lost := [name for name, shard in index.items() if name not in found or found[name].file.name != shard]:
        raise CheckpointError(f"{directory / _INDEX}: tensors that are not in the file it names: {some(lost)}")
    return found


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
    ) -> None:
        """Tensors taken are added to ``digest``: whole, or to a ``RankDigest`` only the bytes taken.

        Raises ``CheckpointError`` naming missing, unexpected, mis-shaped and contradicting tensors.
        """
        found = {name: each for name, each in find_tensors(directory).items() if not expected.is_left_out(name)}
        self._tensors = {expected.renamed(name): tensor for name, tensor in found.items()}
        if twice := [name for name in found if self._tensors[expected.renamed(name)].name != name]:
            raise CheckpointError(f"{directory}: tensors that are there twice, under two names: {some(twice)}")
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        check_tensors(directory, shapes, expected, "config.json")
        types = _TYPES if expected.quantized else _FLOAT_TYPES | _BYTES
        wrong = (self._tensors[name] for name in expected.shapes if self._tensors[name].type_name not in types)
        if (first := next(wrong, None)) is not None:
            raise _wrong_type(first, types)
        self._expected = expected
        self.dtype = dtype
        self._staging = Staging(dtype, device)
        self._device = device
        self._on_progress = on_progress
        self._digest = digest
        self._files: dict[Path, mmap.mmap] = {}
        self._aligned: dict[str, bytearray] = {}
        self._counted: set[str] = set()
        """Tensors taken in parts that are already counted whole."""
        self._mapped = 0
        self._done = 0
        self._total = int(sum(self._tensors[name].nbytes for name in expected.shapes) * expected.share)
        for name in self._tensors.keys() - expected.shapes.keys():
            if (original := expected.repeats(name)) is not None:
                self._require_equal(name, original)

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
        self._count(name, rows.start * math.prod(shape[1:]) * part.itemsize, part.nbytes)
        return part

    def take_stored(self, name: str, *place: int | slice) -> torch.Tensor:
        self._let_go_of_many()
        tensor = self._mapped_tensor(name, _TYPES)
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
        """A tensor's bytes in the mapped file."""
        stored = self._tensors[name]
        if stored.file not in self._files:
            self._files[stored.file] = _mapped(stored.file)
        return memoryview(self._files[stored.file])[stored.start : stored.start + stored.nbytes]

    def _view(self, name: str, types: Mapping[str, torch.dtype] = _FLOAT_TYPES) -> torch.Tensor:
        """A tensor in the mapped file; counts as taken whole."""
        tensor = self._mapped_tensor(name, types)
        self._count(name, 0, self._tensors[name].nbytes)
        return tensor

    def _mapped_tensor(self, name: str, types: Mapping[str, torch.dtype] = _FLOAT_TYPES) -> torch.Tensor:
        stored = self._tensors[name]
        if (dtype := types.get(stored.type_name)) is None:
            raise _wrong_type(stored, types)
        try:
            content = self._content(name)
            aligned = self._copied(name, content) if stored.start % dtype.itemsize else content
            numbers = torch.frombuffer(aligned, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            return numbers.view(stored.shape)
        except (RuntimeError, ValueError, OSError) as error:
            raise CheckpointError(f"{stored.file}: cannot read {name}: {error}") from error

    def _copied(self, name: str, content: memoryview) -> bytearray:
        if name not in self._aligned:
            if len(self._aligned) == _ALIGNED_AT_ONCE:
                self._aligned.clear()
            self._aligned[name] = bytearray(content)
        return self._aligned[name]

    def _count(self, name: str, start: int, nbytes: int) -> None:
        """Add bytes of a tensor to digest and progress."""
        stored = self._tensors[name]
        if self._digest is not None and stored.dtype is not None:
            content = self._content(name)[start : start + nbytes]
            self._digest.add(name, stored.dtype, stored.shape, start, content)
        self._mapped += nbytes
        self._done += nbytes


def _read_index(path: Path) -> dict[str, str]:
    """An index file's map from tensors to files."""
    try:
        weight_map = json.loads(path.read_text("utf-8"))["weight_map"]
        if not all(isinstance(shard, str) for shard in weight_map.values()) or not weight_map:
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if is_lfs_pointer(path):
            raise CheckpointError(lfs_problem(path)) from error
        raise CheckpointError(f"{path} is not an index of safetensors files") from error
    return dict(weight_map)


def _mapped(file: Path) -> mmap.mmap:
    """A private (copy-on-write) mapping of a file."""
    # For thousands of small tensors, safetensors' own reader takes longer than everything else, and every torch
    # operation counts.
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)


def _tensors_of(file: Path) -> dict[str, StoredTensor]:
    """The tensors in one file's header. Raises ``CheckpointError``, also for a file shorter than its header says."""
    try:
        with safe_open(file, framework="pt"):
            pass  # opening checks size and header
        with file.open("rb") as opened:
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
