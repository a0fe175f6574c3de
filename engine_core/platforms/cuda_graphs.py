"""CUDA graphs of steps with one row per sequence, and the buffers from which they read a step's inputs. Graphs are
captured for some sizes; a step of any size in between replays the next larger one. Where adapters may be loaded, each
size has two graphs: steps without any are as fast as without the option.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import offsets_of, upload
from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.forward_context import Caches, ForwardContext, Taps
from engine_core.garbage import no_garbage_collected
from engine_core.kv_cache_interface import NO_STATE
from engine_core.models.language_model import LanguageModel
from engine_core.ops.base import Greatest
from engine_core.states.base import StateMetadata
from engine_core.worker.forward import PendingTokens, Rows
from engine_core.worker.input_batch import BatchLimits, StepInputs

_FIRST_SIZES = (1, 2, 4)
_STEP = 8
_LARGEST = 512
_NO_SEQUENCES = AttentionMetadata(
    query_starts=torch.zeros(1, dtype=torch.int32),
    seq_lens=torch.empty(0, dtype=torch.int32),
    block_tables=torch.empty(0, 1, dtype=torch.int32),
    slot_mapping=torch.empty(0, dtype=torch.int64),
    max_query_len=1,
    max_seq_len=0,
)
"""A step of padding alone."""
_NO_STATES = StateMetadata.of_sequences([], [], [])
_SAVES = 2
"""States that a sequence saves per row, at most: its own, and a snapshot at a block's end."""
_Integer = TypeVar("_Integer", np.int32, np.int64)


class CudaGraphRecorder:
    """Captures into one pool of memory, which grows with each capture."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, function: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Call ``function`` once so that its kernels are compiled and loaded, then capture a call."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Garbage may hold graphs of a closed engine, and destroying one invalidates a capture.
        with no_garbage_collected(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            function()
        return graph


class Recorded(Protocol):
    """A captured function."""

    def replay(self) -> None:
        """Repeat the captured work on the current contents of its memory."""


class Recorder(Protocol):
    """Captures what functions do on the device; all captures share one pool of memory."""

    def record(self, function: Callable[[], None]) -> Recorded:
        """Capture ``function``, possibly calling it more than once."""


def graph_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, then multiples of 8 up to ``max_num_seqs`` (at most 512), and that maximum; ascending."""
    largest = min(max_num_seqs, _LARGEST)
    sizes = {*_FIRST_SIZES, *range(_STEP, largest + 1, _STEP), largest}
    return sorted(size for size in sizes if size <= largest)


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """A model's inputs on its device, T rows."""

    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    metadata: list[AttentionMetadata]
    """By KV cache group."""
    state_metadata: StateMetadata | None
    """None: no layer keeps a state."""

    def context(self, caches: Caches, rows: torch.Tensor | None = None, taps: Taps | None = None) -> ForwardContext:
        return ForwardContext(
            caches.kv, self.metadata, rows, states=caches.states, state_metadata=self.state_metadata, taps=taps
        )


class GraphInputBuffers:
    """Device memory for the inputs of any step within ``limits``."""

    def __init__(self, limits: BatchLimits, device: torch.device) -> None:
        rows, seqs, width = limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_blocks_per_table
        rows, self._num_groups = max(rows, seqs), len(limits.kv_cache_groups)
        columns, tables = [8 * rows] * (2 + self._num_groups), [4 * seqs * width] * self._num_groups
        # Sources, starts of saves, and rows and slots of saves: each row of a step may make several.
        states = [4 * seqs, 4 * (seqs + 1), *[4 * _SAVES * rows] * 2] if limits.keeps_states else []
        self._num_state_arrays = len(states)
        size = offsets_of([*columns, 4 * (seqs + 1), 4 * seqs, *states, *tables, 8 * seqs, 8 * seqs])[-1]
        self._device = device
        self._max_model_len = limits.max_model_len
        self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._block_tables = torch.zeros(self._num_groups, seqs, width, dtype=torch.int32, device=device)

    def load(self, inputs: StepInputs, pending: PendingTokens | None) -> DeviceInputs:
        """Copy ``inputs`` to the device without waiting for it; valid until the next load."""
        slots = [group.slot_mapping for group in inputs.metadata]
        tables = [group.block_tables for group in inputs.metadata]
        of_sequences = [inputs.query_starts, inputs.lengths.astype(np.int32)]
        states = [] if inputs.state_metadata is None else [x.numpy() for x in _arrays(inputs.state_metadata)]
        columns, behind = ([x.numpy() for x in each] for each in ([inputs.input_ids, inputs.positions, *slots], tables))
        loaded = self._upload([*columns, *of_sequences, *states, *behind], pending)
        most = int(np.diff(inputs.query_starts).max()), int(inputs.lengths.max())
        return self._inputs(loaded, *most)

    def _inputs(self, loaded: Sequence[torch.Tensor], max_query_len: int, max_seq_len: int) -> DeviceInputs:
        """``loaded``: token ids, positions, slots of each group, query starts, lengths, arrays of states if there are
        any, block tables of each group.
        """
        ids, positions, *others = loaded
        groups = self._num_groups
        slots, (starts, lengths), others = others[:groups], others[groups : groups + 2], others[groups + 2 :]
        states, tables = others[: self._num_state_arrays], others[self._num_state_arrays :]
        metadata = [
            AttentionMetadata(starts, lengths, table, slot_mapping, max_query_len, max_seq_len, group)
            for group, (table, slot_mapping) in enumerate(zip(tables, slots, strict=True))
        ]
        return DeviceInputs(ids, positions, metadata, StateMetadata(starts, *states) if states else None)

    def load_padded(self, inputs: StepInputs, size: int, pending: PendingTokens | None) -> None:
        """Copy inputs of at most ``size`` sequences, one row each, to the buffers that ``padded`` returns."""
        count = len(inputs.input_ids)
        columns = [_padded(x.numpy(), size, 0) for x in (inputs.input_ids, inputs.positions)]
        columns += [_padded(group.slot_mapping.numpy(), size, -1) for group in inputs.metadata]
        starts, lengths = np.arange(size + 1, dtype=np.int32), _padded(inputs.lengths.astype(np.int32), size, 0)
        states = [] if inputs.state_metadata is None else _padded_states(inputs.state_metadata, size)
        tables = [group.block_tables.numpy() for group in inputs.metadata]
        loaded = self._upload([*columns, starts, lengths, *states, *tables], pending)
        for group, table in enumerate(loaded[len(loaded) - self._num_groups :]):
            self._block_tables[group, :count, : table.shape[1]].copy_(table)

    def _upload(self, arrays: list[npt.NDArray[Any]], pending: PendingTokens | None) -> list[torch.Tensor]:
        """Copy ``arrays``, token ids first, and write pending tokens into their rows."""
        if pending is None:
            return upload(arrays, self._device, into=self._memory)
        *loaded, rows, indices = upload([*arrays, pending.rows, pending.indices], self._device, into=self._memory)
        loaded[0].index_copy_(0, rows, pending.token_ids.index_select(0, indices))
        return loaded

    def padded(self, size: int) -> DeviceInputs:
        """The buffers of a step of ``size`` sequences, which ``load_padded`` fills."""
        num_columns, states = 2 + self._num_groups, [size, size + 1, _SAVES * size, _SAVES * size]
        counts = [size] * num_columns + [size + 1, size] + states[: self._num_state_arrays]
        dtypes = [torch.int64] * num_columns + [torch.int32] * (len(counts) - num_columns)
        offsets = offsets_of([count * dtype.itemsize for count, dtype in zip(counts, dtypes, strict=True)])
        loaded = [
            self._memory[offset : offset + count * dtype.itemsize].view(dtype)
            for offset, count, dtype in zip(offsets, counts, dtypes, strict=False)
        ]
        return self._inputs([*loaded, *self._block_tables[:, :size]], 1, self._max_model_len)

    def clear(self, size: int) -> None:
        """Fill a step of ``size`` sequences with padding."""
        inputs = self.padded(size)
        inputs.input_ids.zero_()
        inputs.positions.zero_()
        if inputs.state_metadata is not None:
            padding = _padded_states(_NO_STATES, size)
            for own, each in zip(_arrays(inputs.state_metadata), padding, strict=True):
                own.copy_(torch.from_numpy(each))
            inputs.state_metadata.query_starts.copy_(torch.arange(size + 1, dtype=torch.int32))
        for group in inputs.metadata:
            group.slot_mapping.fill_(-1)
            group.query_starts.copy_(torch.arange(size + 1, dtype=torch.int32))
            group.seq_lens.zero_()


def _padded(array: npt.NDArray[_Integer], size: int, fill: int) -> npt.NDArray[_Integer]:
    return np.concatenate([array, np.full(size - len(array), fill, array.dtype)])


def _arrays(states: StateMetadata) -> list[torch.Tensor]:
    """All but the query starts."""
    return [states.sources, states.save_starts, states.save_rows, states.save_slots]


def _padded_states(states: StateMetadata, size: int) -> list[npt.NDArray[np.int32]]:
    """``_arrays`` of a step of at most ``size`` sequences, one row each, with padding that saves its states nowhere.

    Entries after the last save are unspecified: only starts say which there are.
    """
    sources, starts, rows, slots = (each.numpy() for each in _arrays(states))
    count, padding = len(sources), np.arange(1, size - len(sources) + 1, dtype=np.int32)
    return [
        _padded(sources, size, NO_STATE),
        np.concatenate([starts, starts[-1] + padding]),
        _padded(np.concatenate([rows, count - 1 + padding]), _SAVES * size, 0),
        _padded(slots, _SAVES * size, NO_STATE),
    ]


class DeviceForward:
    """Runs a model on a device: by a captured graph if one is large enough, else kernel by kernel."""

    def __init__(
        self, model: LanguageModel, limits: BatchLimits, device: torch.device, attention: AttentionBackend
    ) -> None:
        """``attention`` is the backend of ``model``. Nothing is captured yet."""
        self._model = model
        self._limits = limits
        self._device = device
        self._attention = attention
        self._inputs = GraphInputBuffers(limits, device)
        self.sizes = graph_sizes(limits.max_num_seqs)
        self._graphs: dict[tuple[int, bool], Recorded] = {}
        """By size, and whether rows may have adapters."""
        self._captured: Sequence[int] = ()
        self._caches: Caches | None = None
        self._hidden: torch.Tensor | None = None
        self.taps: Taps | None = None
        self._tapped: list[torch.Tensor] = []
        """Of all graphs: where they leave their ``taps``."""

    def __call__(
        self, inputs: StepInputs, caches: Caches, pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        wanted = None if rows is None else upload([rows], self._device)[0]
        count = len(inputs.input_ids)
        size = self._size_for(count) if caches is self._caches and self._is_captured(inputs) else None
        if size is None or self._hidden is None:
            if inputs.metadata:
                self._attention.plan(inputs.metadata[0])
            loaded = self._inputs.load(inputs, pending)
            context = loaded.context(caches, wanted, self.taps)
            if not inputs.is_of_text:
                context = _with_pictures(context, inputs, self._device)
            return self._model.forward(loaded.input_ids, loaded.positions, context)
        if inputs.metadata:
            self._attention.plan(inputs.metadata[0], size)
        self._inputs.load_padded(inputs, size, pending)
        self._graphs[size, inputs.adapters is not None].replay()
        if self.taps is not None:
            self.taps.hidden[:] = [each[:count] for each in self._tapped]
        return self._hidden[:count] if wanted is None else self._hidden.index_select(0, wanted)

    @property
    def masks_argmax(self) -> bool:
        return self._model.masks_argmax

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.compute_logits(hidden)

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        return self._model.greatest(hidden, allowed)

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def _is_captured(self, inputs: StepInputs) -> bool:
        """Whether a graph computes steps like this one, whose adapters are those of ``LoRALayers.computing``."""
        lora = self._model.lora
        return _is_capturable(inputs) and not (lora is not None and lora.change_embeddings)

    def _size_for(self, rows: int) -> int | None:
        at = bisect_left(self._captured, rows)
        return self._captured[at] if at < len(self._captured) else None

    @torch.inference_mode()
    def capture(self, recorder: Recorder, caches: Caches, sizes: Sequence[int]) -> None:
        """Capture steps of ``sizes`` (ascending) on ``caches``; largest first, as the others fit in its memory."""
        self._graphs.clear()
        self._caches = caches
        for size in reversed(sizes):
            if caches.kv:
                self._attention.plan(_NO_SEQUENCES, size)
            self._inputs.clear(size)
            compute = partial(self._compute, size)
            self._graphs[size, False] = recorder.record(compute)
            if self._model.lora is not None:
                with rehearsing_adapters(self._model, self._limits):
                    self._graphs[size, True] = recorder.record(compute)
        self._captured = tuple(sizes)

    def release(self) -> None:
        """Drop all graphs."""
        self._graphs.clear()
        self._captured = ()
        self._caches = self._hidden = None
        self._tapped = []

    def _compute(self, size: int) -> None:
        """Compute a step of ``size`` rows; the results stay in memory that all sizes share."""
        inputs = self._inputs.padded(size)
        assert self._caches is not None
        taps = None if self.taps is None else Taps(self.taps.layers)
        hidden = self._model.forward(inputs.input_ids, inputs.positions, inputs.context(self._caches, taps=taps))
        tapped = [] if taps is None else taps.hidden
        if self._hidden is None:  # the largest size comes first
            self._hidden = torch.empty_like(hidden)
            self._tapped = [torch.empty_like(each) for each in tapped]
        for own, each in zip([self._hidden, *self._tapped], [hidden, *tapped], strict=True):
            own[:size].copy_(each)


def rehearsing_adapters(model: LanguageModel, limits: BatchLimits) -> AbstractContextManager[None]:
    """Within it ``model`` launches what adapters would add, if there may be any: as in ``LoRAOps.rehearsing``."""
    if model.lora is None:
        return nullcontext()
    return model.lora.rehearsing(graph_sizes(limits.max_num_seqs)[-1], limits.max_lora_rank)


def _is_capturable(inputs: StepInputs) -> bool:
    """Whether a graph may compute the step: each sequence has one row, none in a picture, and few states are saved."""
    states = inputs.state_metadata
    saves = 0 if states is None else len(states.save_rows)
    count = len(inputs.slots)
    return inputs.is_of_text and len(inputs.input_ids) == count and saves <= _SAVES * count


def _with_pictures(context: ForwardContext, inputs: StepInputs, device: torch.device) -> ForwardContext:
    """``context`` of a step of an encoder, or some rows of which lie in pictures, on ``device``."""
    until = next((each.visible_until for each in inputs.metadata), None)
    given = [each for each in (inputs.rotary_positions, inputs.token_types, until) if each is not None]
    there = iter(upload([each.numpy() for each in given], device))
    rotary = None if inputs.rotary_positions is None else next(there)
    types = None if inputs.token_types is None else next(there)
    metadata = context.metadata
    if until is not None:
        until = next(there)
        metadata = [replace(group, visible_until=until) for group in metadata]
    return replace(context, metadata=metadata, media=inputs.media, rotary_positions=rotary, token_types=types)
