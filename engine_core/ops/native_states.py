"""Ops on states by the kernels in cpu/states/."""

from __future__ import annotations

import torch

from engine_core.kernels.arguments import NUMBER_TYPES
from engine_core.kernels.capture import kernel_output
from engine_core.kernels.library import Kernels
from engine_core.ops.states import RecurrenceParameters, StateOps
from engine_core.states.base import LayerState, StateMetadata


class NativeStateOps(StateOps):
    """C, K, V and D are multiples of 16; weights, biases and ``RecurrenceParameters`` are dense."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

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
        x = _adjacent(x)
        gate, output_gate = (None if each is None else _adjacent(each) for each in (gate, output_gate))
        output = kernel_output(x.shape[0], x.shape[1], x.dtype)
        self._kernels.short_convolution.run(
            x=x,
            gate=gate,
            output_gate=output_gate,
            weight=weight,
            bias=bias,
            output=output,
            states=state.conv,
            x_stride=x.stride(0),
            gate_stride=0 if gate is None else gate.stride(0),
            output_gate_stride=0 if output_gate is None else output_gate.stride(0),
            channels=x.shape[1],
            taps=len(weight),
            silu=silu,
            number_type=NUMBER_TYPES[x.dtype],
            **_of_step(metadata),
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
        """``update`` has the type of ``decay``."""
        query, key, value, decay = (_adjacent(each) for each in (query, key, value, decay))
        update = None if update is None else _adjacent(update)
        rows, heads, width = value.shape
        output = kernel_output(rows, heads * width, value.dtype).view(rows, heads, width)
        least, most = parameters.step_limits
        eps = parameters.normalize_eps
        self._kernels.recurrence.run(
            query=query,
            key=key,
            value=value,
            decay=decay,
            update=update,
            rates=parameters.rates,
            biases=parameters.biases,
            skips=parameters.skips,
            output=output,
            states=state.recurrent,
            query_stride=query.stride(0),
            key_stride=key.stride(0),
            value_stride=value.stride(0),
            query_head_stride=query.stride(1),
            key_head_stride=key.stride(1),
            value_head_stride=value.stride(1),
            decay_stride=decay.stride(0),
            update_stride=0 if update is None else update.stride(0),
            num_heads=heads,
            num_key_heads=key.shape[1],
            key_dim=key.shape[2],
            value_dim=width,
            number_type=NUMBER_TYPES[value.dtype],
            input_type=NUMBER_TYPES[decay.dtype],
            normalize=eps is not None,
            query_scale=parameters.query_scale,
            epsilon=0.0 if eps is None else eps,
            least_step=least,
            most_step=most,
            **_of_step(metadata),
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
        x, gate = _adjacent(x), _adjacent(gate)
        rows, groups, padded = x.shape
        output = kernel_output(rows, groups * padded, x.dtype).view(rows, groups, padded)
        self._kernels.gated_norm.run(
            x=x,
            gate=gate,
            weight=weight,
            output=output,
            rows=rows,
            groups=groups,
            width=padded,
            mean_width=width,
            x_stride=x.stride(0),
            gate_stride=gate.stride(0),
            x_group_stride=x.stride(1),
            gate_group_stride=gate.stride(1),
            weight_group_stride=0 if len(weight) == 1 else padded,
            norm_before_gate=norm_before_gate,
            number_type=NUMBER_TYPES[x.dtype],
            epsilon=eps,
        )
        return output


def _adjacent(x: torch.Tensor) -> torch.Tensor:
    """``x``, with the numbers of its last dimension next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _of_step(metadata: StateMetadata) -> dict[str, torch.Tensor | int]:
    """The arguments that a replay replaces by those of its own step."""
    return {
        "query_starts": metadata.query_starts,
        "sources": metadata.sources,
        "save_starts": metadata.save_starts,
        "save_rows": metadata.save_rows,
        "save_slots": metadata.save_slots,
        "num_seqs": len(metadata.sources),
    }
