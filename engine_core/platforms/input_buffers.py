"""Graph input buffers: a step's inputs on a device, copied at once to the addresses that its graphs read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.attention.base import AttentionMetadata
from engine_core.platforms.async_copy import offsets_of, upload
from engine_core.worker.forward import PendingTokens
from engine_core.worker.input_batch import BatchLimits, StepInputs


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """What the model takes, on its device. T rows."""

    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    metadata: AttentionMetadata


class GraphInputBuffers:
    """Memory of the device for the inputs of any step within ``limits``."""

    def __init__(self, limits: BatchLimits, device: torch.device) -> None:
        """Take it."""
        rows, seqs, width = limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_blocks_per_seq
        rows = max(rows, seqs)
        columns, tables, pending = [8 * rows] * 3, [4 * (seqs + 1), 4 * seqs, 4 * seqs * width], [8 * seqs] * 2
        size = offsets_of([*columns, *tables, *pending])[-1]
        self._device = device
        self._max_model_len = limits.max_model_len
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._block_tables = torch.zeros(seqs, width, dtype=torch.int32, device=device)

    def load(self, inputs: StepInputs, pending: PendingTokens | None) -> DeviceInputs:
        """Copy ``inputs`` to the device without waiting for it; valid until the next ones are loaded."""
        metadata = inputs.metadata
        arrays = [inputs.input_ids, inputs.positions, metadata.slot_mapping, metadata.query_starts, metadata.seq_lens]
        host = [x.numpy() for x in (*arrays, metadata.block_tables)]
        ids, positions, slots, starts, lengths, tables = self._upload(host, pending)
        return DeviceInputs(
            ids,
            positions,
            AttentionMetadata(starts, lengths, tables, slots, metadata.max_query_len, metadata.max_seq_len),
        )

    def load_padded(self, inputs: StepInputs, size: int, pending: PendingTokens | None) -> None:
        """Copy inputs of at most ``size`` sequences with one row each to the buffers that ``padded`` returns."""
        metadata, count = inputs.metadata, len(inputs.input_ids)
        columns = [inputs.input_ids, inputs.positions, metadata.slot_mapping]
        padded = [_padded(x.numpy(), size, fill) for x, fill in zip(columns, (0, 0, -1), strict=True)]
        padded += [np.arange(size + 1, dtype=np.int32), _padded(metadata.seq_lens.numpy(), size, 0)]
        tables = self._upload([*padded, metadata.block_tables.numpy()], pending)[-1]
        self._block_tables[:count, : tables.shape[1]].copy_(tables)

    def _upload(self, arrays: list[npt.NDArray[Any]], pending: PendingTokens | None) -> list[torch.Tensor]:
        """Copy ``arrays``, the first of which has the token ids, and write pending tokens into their rows."""
        if pending is None:
            return upload(arrays, self._device, into=self._memory)
        *loaded, rows, indices = upload([*arrays, pending.rows, pending.indices], self._device, into=self._memory)
        loaded[0].index_copy_(0, rows, pending.token_ids.index_select(0, indices))
        return loaded

    def padded(self, size: int) -> DeviceInputs:
        """The buffers of a step of ``size`` sequences, which ``load_padded`` fills."""
        offsets = offsets_of([8 * size, 8 * size, 8 * size, 4 * (size + 1), 4 * size])
        dtypes = [torch.int64] * 3 + [torch.int32] * 2
        counts = [size, size, size, size + 1, size]
        ids, positions, slots, starts, lengths = (
            self._memory[offset : offset + count * dtype.itemsize].view(dtype)
            for offset, count, dtype in zip(offsets, counts, dtypes, strict=False)
        )
        tables = self._block_tables[:size]
        return DeviceInputs(ids, positions, AttentionMetadata(starts, lengths, tables, slots, 1, self._max_model_len))

    def clear(self, size: int) -> None:
        """Make all rows of a step of ``size`` sequences padding."""
        inputs = self.padded(size)
        inputs.input_ids.zero_()
        inputs.positions.zero_()
        inputs.metadata.slot_mapping.fill_(-1)
        inputs.metadata.query_starts.copy_(torch.arange(size + 1, dtype=torch.int32))
        inputs.metadata.seq_lens.zero_()


def _padded(array: npt.NDArray[np.int64], size: int, fill: int) -> npt.NDArray[np.int64]:
    return np.concatenate([array, np.full(size - len(array), fill, array.dtype)])
