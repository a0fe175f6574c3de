"""Ops on states by Triton kernels. Nothing is read back from the device, so that CUDA graphs can capture them."""

from __future__ import annotations

import torch
import triton

from engine_core.kernels.triton import AS_WRITTEN
from engine_core.kernels.triton.states import advance, convolve, normalize_gated
from engine_core.ops.states import RecurrenceParameters, StateOps
from engine_core.states.base import LayerState, StateMetadata

_ROWS_TOGETHER, _CHANNELS_TOGETHER = 32, 64
_STATE_PER_WARP = 2048
"""Numbers of a recurrent state that a warp keeps in registers: 64 of a thread."""
_WIDTH_PER_WARP = 512


class GpuStateOps(StateOps):
    """Computed by kernels. A save to a slot below 0 is left out, as padded steps need it.

    The last dimension of every tensor is dense.
    """

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
        (taps, channels), output = weight.shape, torch.empty(x.shape, dtype=x.dtype, device=x.device)
        convolve[(len(metadata.sources), -(-channels // _CHANNELS_TOGETHER))](
            x,
            x if gate is None else gate,
            x if output_gate is None else output_gate,
            weight,
            weight if bias is None else bias,
            state.conv,
            output,
            *_pointers(metadata),
            x.stride(0),
            0 if gate is None else gate.stride(0),
            0 if output_gate is None else output_gate.stride(0),
            CHANNELS=channels,
            TAPS=taps,
            ROWS=_ROWS_TOGETHER,
            BLOCK=_CHANNELS_TOGETHER,
            WIDTH=triton.next_power_of_2(taps - 1),
            GATED=gate is not None,
            OUTPUT_GATED=output_gate is not None,
            BIASED=bias is not None,
            SILU=silu,
            num_warps=4,
            **AS_WRITTEN,
        )
        return output

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
        assert state.recurrent is not None
        (_, heads, value_dim), (_, groups, key_dim) = value.shape, key.shape
        output = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        keys = triton.next_power_of_2(key_dim)
        values = max(1, min(triton.next_power_of_2(value_dim), _STATE_PER_WARP // keys))
        least, most = parameters.step_limits
        advance[(len(metadata.sources), heads, -(-value_dim // values))](
            query,
            key,
            value,
            decay,
            decay if update is None else update,
            parameters.rates,
            parameters.biases,
            parameters.rates if parameters.skips is None else parameters.skips,
            state.recurrent,
            output,
            *_pointers(metadata),
            *query.stride()[:2],
            *key.stride()[:2],
            *value.stride()[:2],
            *decay.stride(),
            *(0, 0) if update is None else update.stride(),
            parameters.query_scale,
            parameters.normalize_eps or 0.0,
            float(least),
            float(most),
            HEADS=heads,
            SHARED=heads // groups,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            KEYS=keys,
            VALUES=values,
            DELTA=update is not None,
            NORMALIZED=parameters.normalize_eps is not None,
            SKIPPED=parameters.skips is not None,
            num_warps=1,
            **AS_WRITTEN,
        )
        return output

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
        (rows, groups, size), output = x.shape, torch.empty(x.shape, dtype=x.dtype, device=x.device)
        block = triton.next_power_of_2(size)
        normalize_gated[(rows, groups)](
            x,
            gate,
            weight,
            output,
            *x.stride()[:2],
            *gate.stride()[:2],
            0 if len(weight) == 1 else weight.stride(0),
            eps,
            GROUPS=groups,
            SIZE=size,
            BLOCK=block,
            WIDTH=width,
            GATE_LAST=norm_before_gate,
            num_warps=min(16, max(1, block // _WIDTH_PER_WARP)),
            **AS_WRITTEN,
        )
        return output


def _pointers(metadata: StateMetadata) -> tuple[torch.Tensor, ...]:
    """In the order in which kernels take them."""
    return (
        metadata.query_starts,
        metadata.sources,
        metadata.save_starts,
        metadata.save_rows,
        metadata.save_slots,
    )
