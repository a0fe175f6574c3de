"""Graph input buffers: a step's inputs on a device, brought by one copy to addresses that its graphs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.attention.base import AttentionMetadata
from engine_core.worker.forward import Awaited
from engine_core.worker.input_batch import BatchLimits, StepInputs

_ALIGNMENT = 16
"""Bytes to whose multiple an array is placed: what kernels may assume of a pointer."""

Array = npt.NDArray[Any]


def places_of(sizes: Sequence[int]) -> list[int]:
    """Where arrays of so many bytes begin, one behind the other; and the end of the last."""
    places = [0]
    for size in sizes:
        places.append(places[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return places


def upload(arrays: Sequence[Array], device: torch.device, into: torch.Tensor | None = None) -> list[torch.Tensor]:
    """The ``arrays`` on ``device``, without waiting for it; at the beginning of ``into`` (uint8) where it is given.

    torch keeps the host's side until the copy has been made.
    """
    sizes = [array.nbytes for array in arrays]
    places = places_of(sizes)
    host = torch.empty(places[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    memory = host.numpy()
    for array, place, size in zip(arrays, places, sizes, strict=False):
        memory[place : place + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    target = torch.empty(places[-1], dtype=torch.uint8, device=device) if into is None else into[: places[-1]]
    there = target.copy_(host, non_blocking=True)
    return [
        _view(there, place, array.shape, torch.from_numpy(array[:0]).dtype)
        for array, place in zip(arrays, places, strict=False)
    ]


def _view(memory: torch.Tensor, place: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    size = dtype.itemsize * int(np.prod(shape))
    return memory[place : place + size].view(dtype).view(shape)


@dataclass(frozen=True, slots=True)
class PlacedInputs:
    """What the model takes, on its device. T rows."""

    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    metadata: AttentionMetadata


class InputPlaces:
    """Memory of the device for the inputs of any step within ``limits``."""

    def __init__(self, limits: BatchLimits, device: torch.device) -> None:
        """Take it."""
        rows, seqs, width = limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_blocks_per_seq
        rows = max(rows, seqs)
        columns, tables, awaited = [8 * rows] * 3, [4 * (seqs + 1), 4 * seqs, 4 * seqs * width], [8 * seqs] * 2
        size = places_of([*columns, *tables, *awaited])[-1]
        self._device = device
        self._max_model_len = limits.max_model_len
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._block_tables = torch.zeros(seqs, width, dtype=torch.int32, device=device)

    def place(self, inputs: StepInputs, awaited: Awaited | None) -> PlacedInputs:
        """Bring ``inputs`` to the device without waiting for it; valid until the next are brought."""
        metadata = inputs.metadata
        arrays = [inputs.input_ids, inputs.positions, metadata.slot_mapping, metadata.query_starts, metadata.seq_lens]
        placed = self._upload([x.numpy() for x in (*arrays, metadata.block_tables)], awaited)
        ids, positions, slots, starts, lengths, tables = placed
        return PlacedInputs(
            ids,
            positions,
            AttentionMetadata(starts, lengths, tables, slots, metadata.max_query_len, metadata.max_seq_len),
        )

    def place_padded(self, inputs: StepInputs, size: int, awaited: Awaited | None) -> None:
        """Bring inputs of at most ``size`` sequences with one row each to where ``padded`` of that size finds them."""
        metadata, count = inputs.metadata, len(inputs.input_ids)
        columns = [inputs.input_ids, inputs.positions, metadata.slot_mapping]
        padded = [_padded(x.numpy(), size, fill) for x, fill in zip(columns, (0, 0, -1), strict=True)]
        padded += [np.arange(size + 1, dtype=np.int32), _padded(metadata.seq_lens.numpy(), size, 0)]
        tables = self._upload([*padded, metadata.block_tables.numpy()], awaited)[-1]
        self._block_tables[:count, : tables.shape[1]].copy_(tables)

    def _upload(self, arrays: list[npt.NDArray[Any]], awaited: Awaited | None) -> list[torch.Tensor]:
        """Bring ``arrays``, of which the first are the tokens, and put those that are awaited where they belong."""
        if awaited is None:
            return upload(arrays, self._device, into=self._memory)
        *placed, rows, places = upload([*arrays, awaited.rows, awaited.places], self._device, into=self._memory)
        placed[0].index_copy_(0, rows, awaited.drawn.index_select(0, places))
        return placed

    def padded(self, size: int) -> PlacedInputs:
        """Where ``place_padded`` puts steps of that size."""
        places = places_of([8 * size, 8 * size, 8 * size, 4 * (size + 1), 4 * size])
        dtypes = [torch.int64] * 3 + [torch.int32] * 2
        counts = [size, size, size, size + 1, size]
        ids, positions, slots, starts, lengths = (
            self._memory[place : place + count * dtype.itemsize].view(dtype)
            for place, count, dtype in zip(places, counts, dtypes, strict=False)
        )
        tables = self._block_tables[:size]
        return PlacedInputs(ids, positions, AttentionMetadata(starts, lengths, tables, slots, 1, self._max_model_len))

    def clear(self, size: int) -> None:
        """Make all rows of a step of that size padding."""
        inputs = self.padded(size)
        inputs.input_ids.zero_()
        inputs.positions.zero_()
        inputs.metadata.slot_mapping.fill_(-1)
        inputs.metadata.query_starts.copy_(torch.arange(size + 1, dtype=torch.int32))
        inputs.metadata.seq_lens.zero_()


def _padded(array: npt.NDArray[np.int64], size: int, fill: int) -> npt.NDArray[np.int64]:
    return np.concatenate([array, np.full(size - len(array), fill, array.dtype)])
