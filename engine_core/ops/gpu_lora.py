"""What adapters add, on NVIDIA GPUs, by our own kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import offsets_of, upload
from engine_core.kernels.triton import AS_WRITTEN
from engine_core.kernels.triton.lora import expand, shrink
from engine_core.ops.lora import (
    LoRAOp,
    LoRAOps,
    LoRAOutputs,
    LoRAWeights,
    PackedAdapter,
    RowsByAdapter,
    StepAdapters,
    grouped,
)

_ROWS = 32
"""Of a tile, whatever the step."""
_RANKS, _COLUMNS = 16, 64
_RANK_PROGRAMS = 4
"""Programs that divide the ranks of a tile."""
_PROGRAMS = 4
"""At most, per multiprocessor."""
_LINE = 64
"""Numbers at whose multiples matrices begin."""
_FIELDS = 6
"""Numbers of a layer, and of a piece, in the tables that kernels read."""

Table = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Part:
    """Outputs of a layer that have the same ranks."""

    b: torch.Tensor
    """[G or 1, columns, ranks], ranks filled up with zeros."""
    columns: npt.NDArray[np.int64]
    rank: int
    """Its first one."""

    @classmethod
    def of(cls, outputs: LoRAOutputs, rank: int) -> _Part:
        b = grouped(outputs.b)
        filled = torch.nn.functional.pad(b, (0, _filled(b.shape[2]) - b.shape[2]))
        return cls(filled, outputs.columns.cpu().numpy(), rank)

    def pieces(self, address: int, itemsize: int) -> Table:
        """Entries for the kernel, whose columns follow each other, if B is at ``address``."""
        groups, columns, ranks = self.b.shape
        places = np.arange(columns)
        breaks = np.diff(self.columns, prepend=self.columns[:1] - 2) != 1
        runs = np.maximum.accumulate(np.where(breaks, places, 0))
        starts = np.flatnonzero((places - runs) % _COLUMNS == 0)
        table = np.empty((len(starts), _FIELDS), np.int64)
        table[:, 0] = address + starts * (ranks * itemsize)
        table[:, 1] = columns * ranks if groups > 1 else 0
        table[:, 2], table[:, 3] = self.columns[starts], np.diff(starts, append=columns)
        table[:, 4], table[:, 5] = self.rank, ranks
        return table


class _Layer:
    """An adapter's weights for one layer, before they are on the device."""

    def __init__(self, weights: LoRAWeights) -> None:
        """Ranks come in the order of the outputs, each part's from a multiple of ``_RANKS`` on."""
        places = dict[tuple[int, int], int]()
        lines = list[int]()  # of A, or −1
        self.parts = list[_Part]()
        for outputs in weights.outputs:
            ranks = outputs.ranks
            place = places.setdefault((ranks.start, ranks.stop), len(lines))
            if place == len(lines):
                lines += [*ranks, *[-1] * (_filled(len(ranks)) - len(ranks))]
            self.parts.append(_Part.of(outputs, place))
        self.a = grouped(weights.a)[:, lines]
        """[G or 1, R, K]"""
        self.scales = weights.scales[lines]
        """[R] float32"""
        zeros = torch.tensor(lines) < 0
        self.a[:, zeros] = self.scales[zeros] = 0

    @property
    def matrices(self) -> list[torch.Tensor]:
        return [self.a, *(part.b for part in self.parts)]

    @property
    def ranks(self) -> int:
        return self.a.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class GpuAdapter:
    """An adapter on the device. Its addresses stay as they are."""

    layers: torch.Tensor
    """[layers, 6] int64: the table that kernels read."""
    touched: frozenset[int]
    """Layers that it adds to."""
    ranks: int
    """The most of a layer."""
    kept: tuple[torch.Tensor, ...]
    """What the table points to: weights, scales and pieces."""

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.layers, *self.kept))


@dataclass(frozen=True, slots=True, eq=False)
class _Tiles:
    """Rows on the device, by adapter."""

    table: torch.Tensor
    """[T, 3] int64"""
    count: torch.Tensor
    """[1] int32: tiles."""
    rows: torch.Tensor
    """int32, sorted."""
    most: int | None
    """The most tiles there are; None: any number."""

    @classmethod
    def of(cls, uploaded: Sequence[torch.Tensor], most: int | None) -> _Tiles:
        """``uploaded``: table, count and rows."""
        table, count, rows = uploaded
        return cls(table, count, rows, most)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What launches need."""

    num_rows: int
    all: _Tiles
    wanted: _Tiles
    touched: frozenset[int] | None
    """Layers that adapters add to; None: any."""
    ranks: int
    """The most of a layer."""
    adapters: tuple[GpuAdapter, ...] = ()


class TritonLoRA(LoRAOp):
    """Two launches, for one layer."""

    def __init__(self, ops: TritonLoRAOps, groups: int, inputs: int, outputs: int) -> None:
        super().__init__(ops.num_layers)
        self._ops = ops
        self._groups, self._inputs = groups, inputs
        self._pieces = -(-outputs // _COLUMNS)

    def __call__(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> None:
        step = self._ops.step
        if step is None or (step.touched is not None and self.layer not in step.touched):
            return
        tiles = step.all if len(x) == step.num_rows else step.wanted
        most = len(x) if tiles.most is None else tiles.most  # each tile has a row
        if most:
            x, y = (each if each.ndim == 3 else each[:, None] for each in (x, y))
            self._launch(x, y, scale, step, tiles, most)

    def _launch(self, x: torch.Tensor, y: torch.Tensor, scale: float, step: _Step, tiles: _Tiles, most: int) -> None:
        """``x`` [M, G, K] and ``y`` [M, G, N]."""
        assert x.stride(2) == y.stride(2) == 1
        inner = torch.empty(len(x), self._groups, step.ranks, dtype=torch.float32, device=x.device)
        is_wide = x.dtype == torch.float32
        shared = {"GROUPS": self._groups, "ROWS": _ROWS, "RANKS": _RANKS, "num_warps": 4, **AS_WRITTEN}
        shrink[(min(most * self._groups * _RANK_PROGRAMS, self._ops.programs),)](
            x,
            inner,
            tiles.table,
            tiles.count,
            tiles.rows,
            self.layer,
            x.stride(0),
            x.stride(1),
            inner.stride(0),
            inner.stride(1),
            INPUTS=self._inputs,
            DEPTH=64 if is_wide else 128,
            TOGETHER=_RANK_PROGRAMS,
            IEEE=is_wide,
            WIDE=x.device.type == "cpu",  # under Triton's interpreter
            num_stages=2 if is_wide else 4,
            **shared,
        )
        expand[(min(most * self._groups * self._pieces, self._ops.programs),)](
            inner,
            x,
            y,
            tiles.table,
            tiles.count,
            tiles.rows,
            self.layer,
            inner.stride(0),
            inner.stride(1),
            y.stride(0),
            y.stride(1),
            scale,
            self._pieces,
            COLUMNS=_COLUMNS,
            IEEE=is_wide or x.device.type == "cpu",
            num_stages=2,
            **shared,
        )


class TritonLoRAOps(LoRAOps):
    """Steps of no more rows than a captured one leave their adapters where captured launches find them."""

    def __init__(self, processors: int, device: torch.device) -> None:
        """``processors``: multiprocessors of the ``device``."""
        super().__init__()
        self.programs = _PROGRAMS * processors
        """That a launch has at most."""
        self.step: _Step | None = None
        """What is under way."""
        self._device = device
        self._loading = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._most_rows = self._most_ranks = 0
        """Of a captured step."""
        self._memory: torch.Tensor | None = None
        """Which captured launches read."""

    def linear(self, inputs: int, outputs: int) -> LoRAOp:
        return self.grouped_linear(1, inputs, outputs)

    def grouped_linear(self, groups: int, inputs: int, outputs: int) -> LoRAOp:
        op = TritonLoRA(self, groups, inputs, outputs)
        self._next_layer()
        return op

    def pack(
        self, layers: Mapping[int, LoRAWeights], dtype: torch.dtype, merged: Mapping[int, torch.Tensor] | None = None
    ) -> PackedAdapter:
        assert not merged, "no kernel reads them"
        unpacked = {number: _Layer(weights) for number, weights in layers.items() if weights.outputs}
        matrices = [matrix for layer in unpacked.values() for matrix in layer.matrices]
        begins = np.cumsum([0, *(-(-matrix.numel() // _LINE) * _LINE for matrix in matrices)])
        host = torch.zeros(int(begins[-1]), dtype=dtype)
        for matrix, begin in zip(matrices, begins.tolist(), strict=False):
            host[begin : begin + matrix.numel()] = matrix.flatten()  # rounds
        weights = self.place(host)
        scales = self.place(torch.cat([torch.empty(0), *(layer.scales for layer in unpacked.values())]))
        places = (weights.data_ptr() + begins * dtype.itemsize).tolist()
        table, pieces = np.zeros((self.num_layers, _FIELDS), np.int64), list[Table]()
        for number, layer in unpacked.items():
            a, *bs = places[: len(layer.matrices)]
            del places[: len(layer.matrices)]
            own = [part.pieces(b, dtype.itemsize) for part, b in zip(layer.parts, bs, strict=True)]
            count, group_stride = sum(map(len, own)), layer.a[0].numel() if len(layer.a) > 1 else 0
            table[number] = a, 0, 0, layer.ranks, count, group_stride
            pieces += own
        all_pieces = self.place(torch.from_numpy(np.concatenate([np.zeros((0, _FIELDS), np.int64), *pieces])))
        # Scales and pieces follow each other in the order of the layers.
        touched, sizes = [*unpacked], table[:, 3:5]
        for field, kept, size in ((1, scales, 4), (2, all_pieces, 8 * _FIELDS)):
            counts = sizes[touched, field - 1]
            table[touched, field] = kept.data_ptr() + size * (np.cumsum(counts) - counts)
        most = max((layer.ranks for layer in unpacked.values()), default=0)
        return GpuAdapter(self.place(torch.from_numpy(table)), frozenset(unpacked), most, (weights, scales, all_pieces))

    def place(self, x: torch.Tensor) -> torch.Tensor:
        if self._loading is None:
            return x.to(self._device)
        with torch.cuda.device(self._device):  # which another thread has not set
            computing = torch.cuda.current_stream()
            with torch.cuda.stream(self._loading):
                there = x.to(self._device)
            self._loading.synchronize()
        # Once nobody has it any more, its memory waits for the steps that read it.
        there.record_stream(computing)
        return there

    def begin(self, step: StepAdapters) -> None:
        assert self.step is None
        adapters = tuple(adapter for adapter in step.adapters if isinstance(adapter, GpuAdapter))
        assert len(adapters) == len(step.adapters)
        room = self._most_rows if step.num_rows <= self._most_rows else None
        memory = None if room is None else self._memory
        arrays = _tiled(step.of_all, adapters, room)
        if step.of_wanted is not step.of_all:
            arrays += _tiled(step.of_wanted, adapters, room)
        loaded = upload(arrays, self._device, into=memory)
        touched = frozenset[int]().union(*(adapter.touched for adapter in adapters))
        ranks = max((adapter.ranks for adapter in adapters), default=0)
        assert self._memory is None or ranks <= self._most_ranks, "captured launches have room for no more"
        of_all, of_wanted = (_Tiles.of(loaded[at], int(arrays[at][1][0])) for at in (slice(3), slice(-3, None)))
        self.step = _Step(step.num_rows, of_all, of_wanted, touched, ranks, adapters)

    def end(self) -> None:
        self.step = None

    @contextmanager
    def rehearsing(self, rows: int, ranks: int) -> Iterator[None]:
        assert self.step is None
        assert self._memory is None or (rows, ranks) == (self._most_rows, self._most_ranks), "graphs know both"
        nothing = _empty(rows)
        if self._memory is None:
            size = offsets_of([array.nbytes for array in (*nothing, *nothing)])[-1]
            with torch.inference_mode(False):  # or else nothing could be written outside of it
                self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._most_rows, self._most_ranks = rows, ranks
        tiles = _Tiles.of(upload(nothing, self._device, into=self._memory), None)
        self.step = _Step(0, tiles, tiles, None, ranks)
        try:
            yield
        finally:
            self.step = None


def _filled(ranks: int) -> int:
    return -(-ranks // _RANKS) * _RANKS


def _empty(rows: int) -> list[npt.NDArray[np.integer]]:
    """Room for the tiles of so many rows, none of which has an adapter: table, count and rows."""
    return [np.zeros((rows, 3), np.int64), np.zeros(1, np.int32), np.zeros(rows, np.int32)]


def _tiled(groups: RowsByAdapter, adapters: tuple[GpuAdapter, ...], room: int | None) -> list[npt.NDArray[np.integer]]:
    """The tiles of ``groups``: table, count and rows; with ``room``, as much as so many rows take."""
    starts, ends = groups.starts[:-1].astype(np.int64), groups.starts[1:].astype(np.int64)
    counts = -(-(ends - starts) // _ROWS)
    owners = np.repeat(np.arange(len(adapters)), counts)
    firsts = starts[owners] + _ROWS * (np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners])
    addresses = np.array([adapter.layers.data_ptr() for adapter in adapters], np.int64)
    tiles = np.stack([addresses[owners], firsts, np.minimum(firsts + _ROWS, ends[owners])], axis=1)
    arrays = _empty(max(len(tiles), len(groups.rows)) if room is None else room)
    arrays[0][: len(tiles)], arrays[1][0], arrays[2][: len(groups.rows)] = tiles, len(tiles), groups.rows
    return arrays
