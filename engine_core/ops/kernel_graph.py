"""A model's layers as one call: captured when a step is larger than those before, replayed in every step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine_core.attention.base import Angles, AttentionMetadata
from engine_core.kernels.capture import BufferPool, Captured, NotCapturableError, capturing
from engine_core.ops.base import DecoderStack

_LEAST_ROWS = 64


@dataclass(frozen=True, slots=True)
class _Graph:
    """The captured calls, and the tensors that they read and write."""

    captured: Captured
    hidden: torch.Tensor
    """[rows, H]; like the others, it has as many rows as the pool."""
    angles: list[Angles]
    output: torch.Tensor
    kv_caches: list[torch.Tensor]
    per_layer: torch.Tensor | None

    def fits(self, rows: int, kv_caches: list[torch.Tensor]) -> bool:
        """Whether it can be replayed for ``rows`` rows on these caches."""
        return rows <= self.captured.pool.max_rows and kv_caches is self.kv_caches

    def replay(
        self,
        hidden: torch.Tensor,
        angles: Sequence[Angles],
        metadata: Sequence[AttentionMetadata],
        wanted: torch.Tensor | None,
        per_layer: torch.Tensor | None,
    ) -> torch.Tensor:
        """The output for these inputs; valid until the next replay."""
        rows = len(hidden)
        num_wanted = rows if wanted is None else len(wanted)
        self.hidden[:rows].copy_(hidden)
        if self.per_layer is not None and per_layer is not None:
            self.per_layer[:rows].copy_(per_layer)
        for own, given in zip(self.angles, angles, strict=True):
            for target, source in zip(own, given, strict=True):
                if target is not None and source is not None:
                    target[:rows].copy_(source)
        any_group = metadata[0]
        tables = (ctypes.c_void_p * len(metadata))(*(group.block_tables.data_ptr() for group in metadata))
        self.captured.replay(
            query_starts=any_group.query_starts.data_ptr(),
            seq_lens=any_group.seq_lens.data_ptr(),
            block_tables=ctypes.addressof(tables),
            block_table_stride=any_group.block_tables.stride(0),
            rows=rows,
            selected=None if wanted is None else wanted.data_ptr(),
            num_selected=num_wanted,
            num_seqs=len(any_group.seq_lens),
            num_threads=torch.get_num_threads(),
        )
        return self.output[:num_wanted]


class KernelGraph:
    """Does what a stack of layers does. If anything but native kernels computes, the stack itself is called."""

    def __init__(self, stack: DecoderStack, replay: Callable[..., int]) -> None:
        """``replay`` is ``Kernels.replay``."""
        self._stack = stack
        self._replay = replay
        self._graph: _Graph | None = None
        self._capturable = True

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: Sequence[Angles],
        kv_caches: list[torch.Tensor],
        metadata: Sequence[AttentionMetadata],
        rows: torch.Tensor | None,
        per_layer: torch.Tensor | None,
    ) -> torch.Tensor:
        graph = self._graph
        if self._capturable and (graph is None or not graph.fits(len(hidden), kv_caches)):
            graph = self._graph = self._capture(hidden, angles, kv_caches, metadata, per_layer)
        if graph is None:
            return self._stack(hidden, angles, kv_caches, metadata, rows, per_layer)
        return graph.replay(hidden, angles, metadata, rows, per_layer)

    def _capture(
        self,
        hidden: torch.Tensor,
        angles: Sequence[Angles],
        kv_caches: list[torch.Tensor],
        metadata: Sequence[AttentionMetadata],
        per_layer: torch.Tensor | None,
    ) -> _Graph | None:
        """A graph for steps of as many rows as ``hidden``, or of twice as many as so far; None if there can be none."""
        rows, most = len(hidden), 0 if self._graph is None else self._graph.captured.pool.max_rows
        self._graph = None  # its memory is free before more is taken
        # The stack sees all rows that there is room for: a view of a single one may have any stride.
        rows = max(rows, _LEAST_ROWS, 2 * most if rows > most else 0)
        pool = BufferPool(rows)
        captured = Captured(pool, self._replay)
        every = torch.arange(rows)  # passed, so that the selection of rows is captured, too
        own_hidden = pool.take(rows, hidden.shape[-1], hidden.dtype)
        own_angles = [_each(each, partial(_own, pool=pool)) for each in angles]
        own_per_layer = None if per_layer is None else pool.take(rows, per_layer.shape[-1], per_layer.dtype)
        try:
            with capturing(captured):
                output = self._stack(own_hidden, own_angles, kv_caches, metadata, every, own_per_layer)
        except NotCapturableError:
            self._capturable = False
            return None
        return _Graph(captured, own_hidden, own_angles, output, kv_caches, own_per_layer)


def _each(angles: Angles, change: Callable[[torch.Tensor], torch.Tensor]) -> Angles:
    scales = angles.query_scales
    return Angles(change(angles.cos), change(angles.sin), None if scales is None else change(scales))


def _own(x: torch.Tensor, pool: BufferPool) -> torch.Tensor:
    """[pool's rows, 1, N] with unspecified contents in its memory, for ``x`` [T, 1, N]."""
    return pool.take(pool.max_rows, x.shape[-1], x.dtype).unsqueeze(1)
