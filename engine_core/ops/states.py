"""Ops on states: the short convolution, the linear recurrence, and the gated norm after it. By torch; backends override
them with kernels.

Symbols in shapes: T rows of a step, C channels, W taps, H value heads, G key heads (each shared by H / G neighbouring
value heads), K width of a key, V width of a value.

A recurrence advances token by token, in one order of operations, so that a row's bits do not depend on where a chunk of
its prompt ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine_core.kv_cache_interface import NO_STATE
from engine_core.states.base import LayerState, StateMetadata


@dataclass(frozen=True, slots=True)
class RecurrenceParameters:
    """What a layer's recurrence has learned, and its options.

    With s = softplus(decay input + bias), limited to ``step_limits``, a head's state S [K, V] becomes
    exp(s · rate) · S + kᵀ · u. With an update input b (the gated delta rule, https://arxiv.org/abs/2412.06464),
    u = σ(b) · (v − k · exp(s · rate) · S); without one (Mamba-2, https://arxiv.org/abs/2405.21060), u = s · v. The
    output is scale · q · S + skip · v.
    """

    rates: torch.Tensor
    """[H] float32, negative: −exp(A_log)."""
    biases: torch.Tensor
    """[H] float32: dt_bias."""
    skips: torch.Tensor | None
    """[H] float32: D; None: zeros."""
    query_scale: float = 1.0
    normalize_eps: float | None = None
    """Queries and keys are divided by √(Σ x² + this) first; None: they are not."""
    step_limits: tuple[float, float] = (0.0, float("inf"))


class StateOps:
    """Writes the slots that the metadata names, and nothing else of a ``LayerState``."""

    def short_convolution(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        state: LayerState,
        metadata: StateMetadata,
        *,
        silu: bool,
        gate: torch.Tensor | None = None,
        output_gate: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[T, C]: each channel of ``x`` [T, C] convolved with its ``weight`` [W, C] float32 over the sequence's last W
        rows, the newest last, plus ``bias`` [C] float32; then SiLU if ``silu``.

        ``gate`` [T, C] multiplies ``x`` first, rounded to its type, as which the state keeps it; ``output_gate`` [T, C]
        multiplies the result. Rows of ``x`` and both gates may be strided. Sums are in float32.
        """
        width = len(weight) - 1
        inputs = x if gate is None else x * gate
        output = torch.empty_like(inputs)
        for source, saves, (start, stop) in _sequences(metadata):
            before = _source(state.conv, source)
            seen = torch.cat([before.to(x.dtype), inputs[start:stop]])
            for row, slot in saves:
                end = row + 1 - start + width
                state.conv[slot] = seen[end - width : end]
            taps = seen.float().unfold(0, width + 1, 1)  # [rows, C, W]
            y = (taps * weight.t()).sum(-1)
            if bias is not None:
                y = y + bias
            output[start:stop] = (torch.nn.functional.silu(y) if silu else y).to(x.dtype)
        return output if output_gate is None else output * output_gate

    def recurrence(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        update: torch.Tensor | None,
        parameters: RecurrenceParameters,
        state: LayerState,
        metadata: StateMetadata,
    ) -> torch.Tensor:
        """[T, H, V], as ``RecurrenceParameters`` says, for ``query`` and ``key`` [T, G, K], ``value`` [T, H, V], and
        the inputs ``decay`` and ``update`` [T, H]. Rows may be strided; everything is computed in float32.
        """
        assert state.recurrent is not None
        heads, groups = value.shape[1], key.shape[1]
        queries, keys, values = query.float(), key.float(), value.float()
        if (eps := parameters.normalize_eps) is not None:
            queries, keys = (each * (each.square().sum(-1, keepdim=True) + eps).rsqrt() for each in (queries, keys))
        queries, keys = (
            each.repeat_interleave(heads // groups, 1) for each in (queries * parameters.query_scale, keys)
        )
        steps = torch.nn.functional.softplus(decay.float() + parameters.biases).clamp(*parameters.step_limits)
        factors = (steps * parameters.rates).exp()
        shares = None if update is None else update.float().sigmoid()
        output = torch.empty_like(values)
        for source, saves, (start, stop) in _sequences(metadata):
            matrix = _source(state.recurrent, source).clone()  # [H, K, V]
            due = dict[int, list[int]]()
            for row, slot in saves:
                due.setdefault(row, []).append(slot)
            for row in range(start, stop):
                matrix = matrix * factors[row, :, None, None]
                if shares is None:
                    added = steps[row, :, None] * values[row]
                else:
                    recalled = (keys[row, :, :, None] * matrix).sum(1)
                    added = shares[row, :, None] * (values[row] - recalled)
                matrix = matrix + keys[row, :, :, None] * added[:, None]
                output[row] = (queries[row, :, :, None] * matrix).sum(1)
                for slot in due.get(row, ()):
                    state.recurrent[slot] = matrix
        if parameters.skips is not None:
            output = output + parameters.skips[:, None] * values
        return output.to(value.dtype)

    def gated_norm(
        self,
        x: torch.Tensor,
        gate: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        width: int,
        *,
        norm_before_gate: bool,
    ) -> torch.Tensor:
        """[T, N, D]: RMS norm of the N groups of ``x`` [T, N, D], times ``weight`` [N, D] or [1, D] float32, combined
        with SiLU(``gate``) [T, N, D]: multiplied after the norm if ``norm_before_gate``, else before it.

        Means are over ``width`` elements of a group; the others are zeros. Rows and groups may be strided.
        """
        y, gates = x.float(), torch.nn.functional.silu(gate.float())
        if not norm_before_gate:
            y = y * gates
        y = y * (y.square().sum(-1, keepdim=True) / width + eps).rsqrt() * weight
        return (y * gates if norm_before_gate else y).to(x.dtype)


def _sequences(metadata: StateMetadata) -> Iterator[tuple[int, list[tuple[int, int]], tuple[int, int]]]:
    """Of each sequence: its source, its saves (row, slot), and its range of rows."""
    starts, save_starts = metadata.query_starts.tolist(), metadata.save_starts.tolist()
    saves = list(zip(metadata.save_rows.tolist(), metadata.save_slots.tolist(), strict=True))
    for place, source in enumerate(metadata.sources.tolist()):
        yield source, saves[save_starts[place] : save_starts[place + 1]], (starts[place], starts[place + 1])


def _source(memory: torch.Tensor, slot: int) -> torch.Tensor:
    """The state in ``slot``; zeros for ``NO_STATE``."""
    return torch.zeros_like(memory[0]) if slot == NO_STATE else memory[slot]
