"""Graph input buffers: a step's inputs on a device, copied at once to the addresses that its graphs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import offsets_of, upload
from engine_core.attention.base import AttentionMetadata
from engine_core.worker.forward import PendingTokens
from engine_core.worker.input_batch import BatchLimits, StepInputs


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """What the model takes, on its device. T rows."""

    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    metadata: list[AttentionMetadata]
    """For each group of the KV cache."""


class GraphInputBuffers:
    """Memory of the device for the inputs of any step within ``limits``."""

    def __init__(self, limits: BatchLimits, device: torch.device) -> None:
        """Allocate it."""
        rows, seqs, width = limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_blocks_per_table
        rows, self._num_groups = max(rows, seqs), len(limits.kv_cache_groups)
        columns, tables = [8 * rows] * (2 + self._num_groups), [4 * seqs * width] * self._num_groups
        size = offsets_of([*columns, 4 * (seqs + 1), 4 * seqs, *tables, 8 * seqs, 8 * seqs])[-1]
        self._device = device
        self._max_model_len = limits.max_model_len
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._block_tables = torch.zeros(self._num_groups, seqs, width, dtype=torch.int32, device=device)

    def load(self, inputs: StepInputs, pending: PendingTokens | None) -> DeviceInputs:
        """Copy ``inputs`` to the device without waiting for it; valid until the next ones are loaded."""
        any_group = inputs.metadata[0]
        slots = [group.slot_mapping for group in inputs.metadata]
        tables = [group.block_tables for group in inputs.metadata]
        arrays = [inputs.input_ids, inputs.positions, *slots, any_group.query_starts, any_group.seq_lens, *tables]
        loaded = self._upload([x.numpy() for x in arrays], pending)
        return self._inputs(loaded, any_group.max_query_len, any_group.max_seq_len)

    def _inputs(self, loaded: Sequence[torch.Tensor], max_query_len: int, max_seq_len: int) -> DeviceInputs:
        """``loaded``: token ids, positions, slots of each group, query starts, lengths, block tables of each group."""
        ids, positions, *others = loaded
        groups = self._num_groups
        slots, (starts, lengths), tables = others[:groups], others[groups : groups + 2], others[groups + 2 :]
        metadata = [
            AttentionMetadata(starts, lengths, table, slot_mapping, max_query_len, max_seq_len, group)
            for group, (table, slot_mapping) in enumerate(zip(tables, slots, strict=True))
        ]
        return DeviceInputs(ids, positions, metadata)

    def load_padded(self, inputs: StepInputs, size: int, pending: PendingTokens | None) -> None:
        """Copy inputs of at most ``size`` sequences with one row each to the buffers that ``padded`` returns."""
        count = len(inputs.input_ids)
        columns = [_padded(x.numpy(), size, 0) for x in (inputs.input_ids, inputs.positions)]
        columns += [_padded(group.slot_mapping.numpy(), size, -1) for group in inputs.metadata]
        lengths = _padded(inputs.metadata[0].seq_lens.numpy(), size, 0)
        tables = [group.block_tables.numpy() for group in inputs.metadata]
        loaded = self._upload([*columns, np.arange(size + 1, dtype=np.int32), lengths, *tables], pending)
        for group, table in enumerate(loaded[-self._num_groups :]):
            self._block_tables[group, :count, : table.shape[1]].copy_(table)

    def _upload(self, arrays: list[npt.NDArray[Any]], pending: PendingTokens | None) -> list[torch.Tensor]:
        """Copy ``arrays``, the first of which has the token ids, and write pending tokens into their rows."""
        if pending is None:
            return upload(arrays, self._device, into=self._memory)
        *loaded, rows, indices = upload([*arrays, pending.rows, pending.indices], self._device, into=self._memory)
        loaded[0].index_copy_(0, rows, pending.token_ids.index_select(0, indices))
        return loaded

    def padded(self, size: int) -> DeviceInputs:
        """The buffers of a step of ``size`` sequences, which ``load_padded`` fills."""
        num_columns = 2 + self._num_groups
        dtypes = [torch.int64] * num_columns + [torch.int32] * 2
        counts = [size] * num_columns + [size + 1, size]
        offsets = offsets_of([count * dtype.itemsize for count, dtype in zip(counts, dtypes, strict=True)])
        loaded = [
            self._memory[offset : offset + count * dtype.itemsize].view(dtype)
            for offset, count, dtype in zip(offsets, counts, dtypes, strict=False)
        ]
        return self._inputs([*loaded, *self._block_tables[:, :size]], 1, self._max_model_len)

    def clear(self, size: int) -> None:
        """Make all rows of a step of ``size`` sequences padding."""
        inputs = self.padded(size)
        inputs.input_ids.zero_()
        inputs.positions.zero_()
        for group in inputs.metadata:
            group.slot_mapping.fill_(-1)
            group.query_starts.copy_(torch.arange(size + 1, dtype=torch.int32))
            group.seq_lens.zero_()


def _padded(array: npt.NDArray[np.int64], size: int, fill: int) -> npt.NDArray[np.int64]:
    return np.concatenate([array, np.full(size - len(array), fill, array.dtype)])
