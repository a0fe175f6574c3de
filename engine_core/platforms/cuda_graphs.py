"""Steps in which every sequence has one row, as CUDA graphs: captured once for some sizes, replayed for all sizes
between.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engine_core.async_copy import upload
from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.forward_context import ForwardContext
from engine_core.models.language_model import LanguageModel
from engine_core.platforms.input_buffers import GraphInputBuffers
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


class CudaGraphRecorder:
    """Captures into one pool of memory."""

    def __init__(self) -> None:
        """Take the handle of a pool, which grows with what is captured."""
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Call ``function`` once so that its kernels are compiled and loaded, then capture a call."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            function()
        return graph


class Recorded(Protocol):
    """What was captured."""

    def replay(self) -> None:
        """Do it again, on what its memory holds now."""


class Recorder(Protocol):
    """Captures what a function does on the device; all that it captures shares one pool of memory."""

    def record(self, function: Callable[[], None]) -> Recorded:
        """Capture ``function``, which may be called more than once for that."""


def graph_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, then multiples of 8 up to ``max_num_seqs`` (at most 512) and that itself; ascending."""
    largest = min(max_num_seqs, _LARGEST)
    sizes = {*_FIRST_SIZES, *range(_STEP, largest + 1, _STEP), largest}
    return sorted(size for size in sizes if size <= largest)


class DeviceForward:
    """Runs a model on a device: as a captured graph where one is large enough, else kernel by kernel."""

    def __init__(
        self, model: LanguageModel, limits: BatchLimits, device: torch.device, attention: AttentionBackend
    ) -> None:
        """Nothing is captured yet. ``attention`` is what ``model`` was made with."""
        self._model = model
        self._device = device
        self._attention = attention
        self._inputs = GraphInputBuffers(limits, device)
        self.sizes = graph_sizes(limits.max_num_seqs)
        self._graphs: dict[int, Recorded] = {}
        self._captured: Sequence[int] = ()
        self._kv_caches: list[torch.Tensor] | None = None
        self._hidden: torch.Tensor | None = None

    def __call__(
        self, inputs: StepInputs, kv_caches: list[torch.Tensor], pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        wanted = None if rows is None else upload([rows], self._device)[0]
        count = len(inputs.input_ids)
        any_group = inputs.metadata[0]
        size = self._size_for(count) if any_group.max_query_len == 1 and kv_caches is self._kv_caches else None
        if size is None or self._hidden is None:
            self._attention.plan(any_group)
            loaded = self._inputs.load(inputs, pending)
            context = ForwardContext(kv_caches, loaded.metadata, wanted)
            return self._model.forward(loaded.input_ids, loaded.positions, context)
        self._attention.plan(any_group, size)
        self._inputs.load_padded(inputs, size, pending)
        self._graphs[size].replay()
        return self._hidden[:count] if wanted is None else self._hidden.index_select(0, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.compute_logits(hidden)

    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.argmax(hidden)

    def _size_for(self, rows: int) -> int | None:
        at = bisect_left(self._captured, rows)
        return self._captured[at] if at < len(self._captured) else None

    @torch.inference_mode()
    def capture(self, recorder: Recorder, kv_caches: list[torch.Tensor], sizes: Sequence[int]) -> None:
        """Capture steps of ``sizes`` (ascending) on ``kv_caches``, the largest first: the others fit in its memory."""
        self._graphs.clear()
        self._kv_caches = kv_caches
        for size in reversed(sizes):
            self._attention.plan(_NO_SEQUENCES, size)
            self._inputs.clear(size)
            self._graphs[size] = recorder.record(lambda size=size: self._compute(size))  # type: ignore[misc]
        self._captured = tuple(sizes)

    def release(self) -> None:
        """Let go of all graphs."""
        self._graphs.clear()
        self._captured = ()
        self._kv_caches = self._hidden = None

    def _compute(self, size: int) -> None:
        """A step of ``size`` rows, whose result is left in memory that all sizes share."""
        inputs = self._inputs.padded(size)
        assert self._kv_caches is not None
        context = ForwardContext(self._kv_caches, inputs.metadata)
        hidden = self._model.forward(inputs.input_ids, inputs.positions, context)
        if self._hidden is None:  # the largest size comes first
            self._hidden = torch.empty_like(hidden)
        self._hidden[:size].copy_(hidden)
