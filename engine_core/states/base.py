"""Memory for the states of layers with a recurrence or a short convolution, and which slots a step reads and writes.

Unlike keys and values, a state is overwritten by every token, so that it cannot be shared while it is in use. A step
therefore reads a sequence's state from one slot and leaves it in another, or in the same one; on the way it may leave
copies in further slots: snapshots that other sequences start from, and states to go back to if drafts are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_core.kernels.memory import empty_for_streaming
from engine_core.kv_cache_interface import StateSpec


@dataclass(frozen=True, slots=True)
class StateCacheSpec:
    """What a slot of a model holds."""

    layers: tuple[StateSpec, ...]
    """Of the layers that keep a state, in order; padded."""
    dtype: torch.dtype
    """The model's, in which the inputs of convolutions are kept. Recurrent states are in float32."""

    @property
    def bytes_per_state(self) -> int:
        """Bytes of a slot in all layers."""
        return sum(layer.nbytes(self.dtype.itemsize) for layer in self.layers)

    def allocate(self, num_states: int, device: torch.device) -> list[LayerState]:
        """The memory of each layer, for ``num_states`` slots; unspecified until written.

        A CPU's is only taken as it is written. Raises ``RuntimeError`` if the system refuses it.
        """

        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            whole = (num_states, *shape)
            if device.type == "cpu":
                return empty_for_streaming(whole, dtype)
            return torch.empty(whole, dtype=dtype, device=device)

        return [
            LayerState(
                empty(layer.conv_shape, self.dtype),
                None if layer.recurrent_shape is None else empty(layer.recurrent_shape, torch.float32),
            )
            for layer in self.layers
        ]


@dataclass(frozen=True, slots=True, eq=False)
class LayerState:
    """The slots of one layer."""

    conv: torch.Tensor
    """[slots, W − 1, C] of the model's type: the last inputs of each of C channels, for a convolution of W taps; the
    newest is last."""
    recurrent: torch.Tensor | None
    """[slots, H, K, V] float32: for each of H heads a matrix from keys of width K to values of width V; None: the layer
    has no recurrence."""

    def tensors(self) -> list[torch.Tensor]:
        return [self.conv] if self.recurrent is None else [self.conv, self.recurrent]


@dataclass(frozen=True, slots=True, eq=False)
class StateMetadata:
    """The slots that a step reads and writes, for all layers. S sequences, N saves."""

    query_starts: torch.Tensor
    """[S + 1] int32: sequence s owns rows query_starts[s] … query_starts[s + 1] − 1."""
    sources: torch.Tensor
    """[S] int32: the slot of the state before the sequence's first row; ``NO_STATE``: zeros."""
    save_starts: torch.Tensor
    """[S + 1] int32: sequence s makes saves save_starts[s] … save_starts[s + 1] − 1, at least one."""
    save_rows: torch.Tensor
    """[N] int32: the row of the step after which the state is saved; ascending. Each sequence's last save follows its
    last row."""
    save_slots: torch.Tensor
    """[N] int32: the slot that takes the state. It may be the sequence's source, but no other sequence's. ``NO_STATE``:
    none does; only the padding of a GPU's steps has it."""

    @staticmethod
    def of_sequences(
        counts: Sequence[int],
        sources: Sequence[int],
        targets: Sequence[int],
        saves: Sequence[Sequence[tuple[int, int]]] | None = None,
    ) -> StateMetadata:
        """Metadata on the host for sequences of ``counts`` rows; ``saves``: further (rows, slot) of each, as in
        ``StatePlan``.
        """
        starts, save_starts, rows, slots = [0], [0], list[int](), list[int]()
        for place, (count, target) in enumerate(zip(counts, targets, strict=True)):
            for after, slot in () if saves is None else saves[place]:
                rows.append(starts[-1] + after - 1)
                slots.append(slot)
            starts.append(starts[-1] + count)
            rows.append(starts[-1] - 1)
            slots.append(target)
            save_starts.append(len(rows))
        return StateMetadata(
            *(torch.tensor(each, dtype=torch.int32) for each in (starts, sources, save_starts, rows, slots))
        )

    def on(self, device: torch.device) -> StateMetadata:
        return StateMetadata(
            self.query_starts.to(device),
            self.sources.to(device),
            self.save_starts.to(device),
            self.save_rows.to(device),
            self.save_slots.to(device),
        )
