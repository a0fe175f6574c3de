"""A model's layers as one call: captured when a step is larger than all before, replayed in every step."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine_core.attention.base import Angles
from engine_core.forward_context import ForwardContext, Taps
from engine_core.kernels.capture import BufferPool, Captured, NotCapturableError, capturing
from engine_core.ops.base import DecoderStack

_LEAST_ROWS = 64


@dataclass(frozen=True, slots=True)
class _Graph:
    """The captured calls, and the tensors they read and write."""

    captured: Captured
    hidden: torch.Tensor
    """[rows, H]; like the context's angles, it has as many rows as the pool."""
    context: ForwardContext
    """Without metadata, which differs from step to step."""
    output: torch.Tensor

    def fits(self, rows: int, context: ForwardContext) -> bool:
        """Whether a replay can compute ``rows`` rows on these caches and states."""
        own = self.context
        same_memory = context.kv_caches is own.kv_caches and context.states is own.states
        has_taps = context.taps is None or (own.taps is not None and own.taps.layers == context.taps.layers)
        return rows <= self.captured.pool.max_rows and same_memory and has_taps

    def replay(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """The output for these inputs; valid until the next replay."""
        rows, metadata, wanted = len(hidden), context.metadata, context.rows
        num_wanted = rows if wanted is None else len(wanted)
        self.hidden[:rows].copy_(hidden)
        if self.context.per_layer is not None and context.per_layer is not None:
            self.context.per_layer[:rows].copy_(context.per_layer)
        for own, given in zip(self.context.angles, context.angles, strict=True):
            for target, source in zip(own, given, strict=True):
                if target is not None and source is not None:
                    target[:rows].copy_(source)
        tables = (ctypes.c_void_p * len(metadata))(*(group.block_tables.data_ptr() for group in metadata))
        ends = [None if group.visible_until is None else group.visible_until.data_ptr() for group in metadata]
        until = (ctypes.c_void_p * len(metadata))(*ends)
        self.captured.replay(
            block_tables=ctypes.addressof(tables),
            visible_until=ctypes.addressof(until),
            rows=rows,
            selected=None if wanted is None else wanted.data_ptr(),
            num_selected=num_wanted,
            num_threads=torch.get_num_threads(),
            **_sequences(context),
        )
        if context.taps is not None and self.context.taps is not None:
            context.taps.hidden[:] = [own[:rows] for own in self.context.taps.hidden]
        return self.output[:num_wanted]


class KernelGraph:
    """Computes ``layers``. Their Python runs only in ``_capture``; a step runs kernels/cpu/threads/replay.h.

    If not all of the computation is native kernels, every step calls the layers themselves.
    """

    def __init__(self, layers: DecoderStack, replay: Callable[..., int]) -> None:
        """``replay`` is ``Kernels.replay``."""
        self._layers = layers
        self._replay = replay
        self._graph: _Graph | None = None
        self._capturable = True

    def __call__(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        graph = self._graph
        if self._capturable and (graph is None or not graph.fits(len(hidden), context)):
            graph = self._graph = self._capture(hidden, context)
        return self._layers(hidden, context) if graph is None else graph.replay(hidden, context)

    def _capture(self, hidden: torch.Tensor, context: ForwardContext) -> _Graph | None:
        """A graph for as many rows as ``hidden``, or twice the rows so far; None if the layers cannot be captured."""
        rows, most = len(hidden), 0 if self._graph is None else self._graph.captured.pool.max_rows
        self._graph = None  # frees its memory before more is taken
        # The layers see every row of the pool: a view of a single row may have any stride.
        rows = max(rows, _LEAST_ROWS, 2 * most if rows > most else 0)
        pool = BufferPool(rows)
        captured = Captured(pool, self._replay)

        def own(x: torch.Tensor) -> torch.Tensor:
            """An uninitialized tensor like ``x`` [T, …] with as many rows as the pool."""
            return pool.take(rows, math.prod(x.shape[1:]), x.dtype).view(rows, *x.shape[1:])

        own_hidden = own(hidden)
        own_context = replace(
            context,
            # With rows, the last layer's selection of rows (blocks.SelfAttention.attend) is captured, too; after it a
            # replay counts the selected rows.
            rows=torch.arange(rows),
            angles=[
                Angles(own(cos), own(sin), None if scales is None else own(scales))
                for cos, sin, scales in context.angles
            ],
            per_layer=None if context.per_layer is None else own(context.per_layer),
            media=None,
            rotary_positions=None,
            taps=None if context.taps is None else Taps(context.taps.layers),
        )
        try:
            with capturing(captured):
                output = self._layers(own_hidden, own_context)
        except NotCapturableError:
            self._capturable = False
            return None
        return _Graph(captured, own_hidden, replace(own_context, metadata=(), state_metadata=None), output)


def _sequences(context: ForwardContext) -> dict[str, int]:
    """The fields of a ``RinglineStep`` about a step's sequences."""
    fields = dict[str, int]()
    if (states := context.state_metadata) is not None:
        fields |= {
            "query_starts": states.query_starts.data_ptr(),
            "num_seqs": len(states.sources),
            "state_sources": states.sources.data_ptr(),
            "save_starts": states.save_starts.data_ptr(),
            "save_rows": states.save_rows.data_ptr(),
            "save_slots": states.save_slots.data_ptr(),
        }
    if context.metadata:
        any_group = context.metadata[0]
        fields |= {
            "query_starts": any_group.query_starts.data_ptr(),
            "num_seqs": len(any_group.seq_lens),
            "seq_lens": any_group.seq_lens.data_ptr(),
            "block_table_stride": any_group.block_tables.stride(0),
        }
    return fields
