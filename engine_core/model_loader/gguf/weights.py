"""Weights in GGUF files: memory-mapped, under the names of a checkpoint in transformers' format."""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from engine_core.errors import CheckpointError
from engine_core.model_loader.digest import Digest, RankDigest, TakenBytes
from engine_core.model_loader.expected import ExpectedTensors, check_tensors
from engine_core.model_loader.gguf.names import (
    GgufJoined,
    GgufLatents,
    GgufRows,
    HeadOrder,
    Source,
    TiledColumns,
    tensors_of,
)
from engine_core.model_loader.gguf.reader import GgufTensor
from engine_core.quantization.gguf_blocks import BLOCK_TYPES
from engine_core.weights.source import ProgressCallback, Staging, TensorRows

_FLOAT_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SHORT = 2
"""Bytes per number of the types that ``take_table`` does not convert."""
_EXPANDED_AT_ONCE = 2**20
"""Numbers."""
_READ_AHEAD = 2**27
"""Bytes."""
_MAPPED_AT_ONCE = 2**26
"""Bytes read before pages are released: until then they count as this process's memory."""


class GgufWeights:
    """Reads a checkpoint's tensors, after checking that they are exactly those a model needs."""

    make_quantized = None

    def __init__(
        self,
        path: Path,
        sources: Mapping[str, Source],
        expected: ExpectedTensors,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: ProgressCallback | None = None,
        digest: Digest | None = None,
    ) -> None:
        """Tensors taken are added to ``digest``: whole, or to a ``RankDigest`` only the bytes taken.

        Raises ``CheckpointError`` naming missing, unexpected and mis-shaped tensors.
        """
        self._sources = {expected.renamed(name): source for name, source in sources.items()}
        shapes = {name: source.shape for name, source in self._sources.items()}
        check_tensors(path, shapes, expected, "its metadata")
        self._sources = {name: self._sources[name] for name in expected.shapes}
        self._tensors = {tensor.name: tensor for source in self._sources.values() for tensor in tensors_of(source)}
        self.dtype = dtype
        self._staging = Staging(dtype, device)
        self._device = device
        self._on_progress = on_progress
        self._digest = digest
        self._files = {tensor.file: _mapped(tensor.file) for tensor in self._tensors.values()}
        self._asked: dict[Path, int] = {}
        """The end, in bytes, of each file's read-ahead."""
        self._counted: set[str] = set()
        self._read = 0
        """Bytes since pages were last released."""
        self._done = 0
        self._total = int(sum(tensor.nbytes for tensor in self._tensors.values()) * expected.share)

    def hash_all(self, stop: threading.Event) -> None:
        """Add all tensors to the digest without taking them, until ``stop`` is set."""
        for tensor in self._tensors.values():
            if stop.is_set():
                return
            self._count_whole(tensor)

    def differs(self, taken: TakenBytes) -> bool:
        """Whether the same range has other bytes here."""
        tensor = self._tensors[taken.name]
        content = self._content(tensor)[taken.start : taken.start + taken.count]
        return taken != TakenBytes.of(taken.name, torch.uint8, _bytes_shape(tensor), taken.start, content)

    def take(self, *tensors: str | TensorRows) -> torch.Tensor:
        return self._expanded([self._piece(each) for each in tensors], self._staging)

    def take_table(self, tensor: str | TensorRows) -> torch.Tensor:
        piece = self._piece(tensor)
        source = self._sources[piece.name]
        if isinstance(source, GgufRows) and source.added == 0:
            kept = _FLOAT_TYPES.get(source.tensor.type.name)
            if kept is not None and kept.itemsize == _SHORT:
                return self._expanded([piece], Staging(kept, self._device))
        return self.take(tensor)

    def take_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
        raise AssertionError("a GGUF file has each expert's projections by themselves")

    def take_float32(self, name: str) -> torch.Tensor:
        return self._expanded([self._piece(name)], Staging(torch.float32, self._device))

    def take_stored(self, name: str, *place: int | slice) -> torch.Tensor:
        """Rows of blocks, [N, bytes] uint8."""
        source, rows = self._sources[name], place[0]
        assert not isinstance(source, GgufLatents)
        assert isinstance(rows, slice)
        pieces = [self._rows(*piece) for piece in _pieces(source, range(*rows.indices(source.shape[0])))]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _piece(self, tensor: str | TensorRows) -> TensorRows:
        if isinstance(tensor, TensorRows):
            return tensor
        count = self._sources[tensor].shape[0]
        return TensorRows(tensor, count, range(count))

    def _expanded(self, pieces: list[TensorRows], staging: Staging) -> torch.Tensor:
        """``pieces`` joined along the first dimension."""
        counts = [len(piece.rows) for piece in pieces]
        joined = staging.make((sum(counts), *self._sources[pieces[0].name].shape[1:]))
        for piece, place in zip(pieces, torch.split(joined, counts), strict=True):
            first, source = 0, self._sources[piece.name]
            parts = (
                self._latents(source, piece.rows)
                if isinstance(source, GgufLatents)
                else (part for each in _pieces(source, piece.rows) for part in self._numbers(*each))
            )
            for part in parts:
                place[first : first + len(part)].copy_(part)
                first += len(part)
        return joined

    def _numbers(self, source: GgufRows, rows: range) -> Iterator[torch.Tensor]:
        """``rows`` (of a vector, numbers), a few at a time, in float32 or a shorter type."""
        width = math.prod(source.shape[1:])
        step = max(1, _EXPANDED_AT_ONCE // width)
        for first in range(rows.start, rows.stop, step):
            part = range(first, min(first + step, rows.stop))
            numbers = _decoded(source.tensor, self._rows(source, part))
            if source.columns is not None and not source.columns.fits_blocks(source.tensor):
                numbers = _untiled(numbers, source.columns)
            if source.added:
                numbers = numbers.float() - source.added
            if source.is_rate:
                numbers = _logarithms(source.tensor, numbers.float())
            yield numbers.view(len(part), *source.shape[1:])

    def _latents(self, source: GgufLatents, rows: range) -> Iterator[torch.Tensor]:
        """``rows``, which must be of whole heads, a head's keys or values at a time."""
        heads, latents, keys = source.keys.shape
        values = source.values.shape[1]
        assert rows.start % (keys + values) == rows.stop % (keys + values) == 0
        of_keys = GgufRows(source.keys, (heads * latents, keys))
        of_values = GgufRows(source.values, (heads * values, latents))
        for head in range(rows.start // (keys + values), rows.stop // (keys + values)):
            own = self._numbers(of_keys, range(head * latents, (head + 1) * latents))
            yield torch.cat([part.float() for part in own]).t()
            yield from self._numbers(of_values, range(head * values, (head + 1) * values))

    def _rows(self, source: GgufRows, rows: range) -> torch.Tensor:
        """[rows, bytes] uint8 as stored, but in the checkpoint's order; a vector's rows are its numbers."""
        tensor = source.tensor
        stored = tensor.shape[-1] if len(source.shape) > 1 else 1
        row_bytes = stored // tensor.type.block_size * tensor.type.block_bytes
        if stored % tensor.type.block_size:
            raise CheckpointError(f"{tensor.file}: {tensor.name} is a vector of type {tensor.type.name}: expected F32")
        order = None
        if source.order is not None:
            size, order = source.order.size, _stored_rows(rows, source.order)
            rows = range(rows.start // size * size, -(-rows.stop // size) * size)
            order -= rows.start
        first, count = (source.first + rows.start) * row_bytes, len(rows) * row_bytes
        if isinstance(self._digest, RankDigest):
            self._count(tensor, first, count)
        elif tensor.name not in self._counted:
            self._count_whole(tensor)
        self._give_back(count)
        content = self._content(tensor)[first : first + count]
        found = torch.frombuffer(content, dtype=torch.uint8).view(len(rows), row_bytes)
        if source.columns is not None and source.columns.fits_blocks(tensor):
            found = _untiled(found, source.columns)
        return found if order is None else found[order]

    def _content(self, tensor: GgufTensor) -> memoryview:
        return memoryview(self._files[tensor.file])[tensor.offset : tensor.offset + tensor.nbytes]

    def _count_whole(self, tensor: GgufTensor) -> None:
        self._counted.add(tensor.name)
        self._read_ahead(tensor)
        self._count(tensor, 0, tensor.nbytes)

    def _count(self, tensor: GgufTensor, start: int, nbytes: int) -> None:
        """Add bytes of a tensor to digest and progress."""
        if self._digest is not None:
            content = self._content(tensor)[start : start + nbytes]
            self._digest.add(tensor.name, torch.uint8, _bytes_shape(tensor), start, content, self._give_back)
        self._done += nbytes
        if self._on_progress is not None:
            self._on_progress(min(self._done, self._total), self._total)

    def _read_ahead(self, tensor: GgufTensor) -> None:
        """Have the system read this tensor and the following bytes of its file in the background."""
        content, start = self._files[tensor.file], max(tensor.offset, self._asked.get(tensor.file, 0))
        end = min(tensor.offset + tensor.nbytes + _READ_AHEAD, len(content))
        if start < end:
            start -= start % mmap.PAGESIZE
            content.madvise(mmap.MADV_WILLNEED, start, end - start)
            self._asked[tensor.file] = end

    def _give_back(self, nbytes: int) -> None:
        """Release the pages read so far if they and ``nbytes`` more are many; they may be read again."""
        self._read += nbytes
        if self._read > _MAPPED_AT_ONCE:
            for content in self._files.values():
                content.madvise(mmap.MADV_DONTNEED)
            self._read = nbytes


def _mapped(file: Path) -> mmap.mmap:
    """A private (copy-on-write) mapping; nothing is written to it."""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)


def _pieces(source: GgufRows | GgufJoined, rows: range) -> Iterator[tuple[GgufRows, range]]:
    """The tensors that have ``rows``, and which rows of theirs these are."""
    if isinstance(source, GgufRows):
        yield source, rows
        return
    first = 0
    for part in source.parts:
        own = range(max(rows.start - first, 0), min(rows.stop - first, part.shape[0]))
        if own:
            yield part, own
        first += part.shape[0]


def _bytes_shape(tensor: GgufTensor) -> tuple[int, ...]:
    """[rows, blocks, bytes per block]."""
    blocks = tensor.shape[-1] // tensor.type.block_size
    return math.prod(tensor.shape[:-1]), blocks, tensor.type.block_bytes


def _decoded(tensor: GgufTensor, rows: torch.Tensor) -> torch.Tensor:
    """[N, K] from ``rows`` [N, bytes] uint8."""
    if (block := BLOCK_TYPES.get(tensor.type.name)) is not None:
        return block.weight(rows).dequantized()
    kept = _FLOAT_TYPES[tensor.type.name]
    if rows.data_ptr() % kept.itemsize:
        rows = rows.clone()
    return rows.view(kept)


def _untiled(rows: torch.Tensor, columns: TiledColumns) -> torch.Tensor:
    """``rows`` [N, stored columns], or the bytes of these, in the checkpoint's order."""
    return rows.view(len(rows), columns.per_group, columns.groups, -1).transpose(1, 2).reshape(len(rows), -1)


def _logarithms(tensor: GgufTensor, rates: torch.Tensor) -> torch.Tensor:
    """The x of rates −exp(x), to the bit if there is such an x. Raises ``CheckpointError`` if there can be none."""
    if not bool((rates < 0).all()):
        raise CheckpointError(f"{tensor.file}: {tensor.name} has a number that is not below 0: expected −exp(A_log)")
    x = rates.neg().log()
    for towards in (-torch.inf, torch.inf):  # the rounding of a logarithm may miss it by one
        beside = x.nextafter(torch.tensor(towards))
        x = torch.where((x.exp() != -rates) & (beside.exp() == -rates), beside, x)
    return x


def _stored_rows(rows: range, order: HeadOrder) -> torch.Tensor:
    """Where the checkpoint's ``rows`` are stored."""
    row, half = torch.arange(rows.start, rows.stop), order.rotated // 2
    place = row % order.size
    moved = place % half * 2 + place // half if order.is_paired else place % 2 * half + place // 2
    return row - place + torch.where(place < order.rotated, moved, place)
