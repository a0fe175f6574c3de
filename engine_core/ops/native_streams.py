"""Ops on several residual streams per row by the kernels in cpu/rows/streams.h."""

from __future__ import annotations

import enum

import torch

from engine_core.kernels.arguments import NUMBER_TYPES
from engine_core.kernels.capture import kernel_output
from engine_core.kernels.library import Kernels
from engine_core.ops.lora import MergedLoRA
from engine_core.ops.native_lora import NativeMergedLoRA
from engine_core.ops.streams import LEAST_SQUARE, StreamOps


class _Kind(enum.IntEnum):
    """``RinglineStreamsKind`` of kernels/cpu/interface.h."""

    PREDICT = 0
    CORRECT = 1
    ADD_TO_OTHERS = 2
    COPY = 3


class NativeStreamOps(StreamOps):
    """Streams are dense; H is a multiple of 16, n at most 8."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def predict(
        self,
        streams: torch.Tensor,
        logits: torch.Tensor,
        weight: torch.Tensor,
        active: int,
        adapted: MergedLoRA | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, of_active = _like(streams), _one_of(streams)
        given = {"logits": logits, "weight": weight, "active_output": of_active}
        self._mix(_Kind.PREDICT, streams, output, active, adapted, **given)
        return output, of_active

    def correct(
        self,
        streams: torch.Tensor,
        update: torch.Tensor,
        logits: torch.Tensor,
        weight: torch.Tensor,
        active: int,
        scale: torch.Tensor | None,
        adapted: MergedLoRA | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, of_active = _like(streams), _one_of(streams)
        given = {"update": update, "logits": logits, "weight": weight, "scale": scale, "active_output": of_active}
        self._mix(_Kind.CORRECT, streams, output, active, adapted, **given)
        return output, of_active

    def add_to_others(self, streams: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        output = _like(streams)
        self._mix(_Kind.ADD_TO_OTHERS, streams, output, update=update)
        return output

    def apart(self, streams: torch.Tensor) -> torch.Tensor:
        rows, count, width = streams.shape
        output = kernel_output(rows, count * width, streams.dtype).view(count, rows, width)
        self._mix(_Kind.COPY, streams, output.transpose(0, 1))
        return output

    def _mix(
        self,
        kind: _Kind,
        streams: torch.Tensor,
        output: torch.Tensor,
        active: int = 0,
        adapted: MergedLoRA | None = None,
        **given: torch.Tensor | None,
    ) -> None:
        """``output`` [T, n, H] may be in another order."""
        of_adapters = adapted.arguments() if isinstance(adapted, NativeMergedLoRA) else {}
        self._kernels.streams.run(
            x=streams,
            output=output,
            rows=streams.shape[0],
            width=streams.shape[2],
            output_stride=output.stride(0),
            output_stream_stride=output.stride(1),
            streams=streams.shape[1],
            active=active,
            kind=kind,
            number_type=NUMBER_TYPES[streams.dtype],
            **of_adapters,
            **given,
        )

    def spread(self, first: torch.Tensor, others: torch.Tensor, width: int) -> torch.Tensor:
        rows, count, padded = others.shape
        output = kernel_output(rows, (count + 1) * padded, first.dtype).view(rows, count + 1, padded)
        self._match(others, first, output, width, leads=True)
        return output

    def joined(
        self, x: torch.Tensor, target: torch.Tensor, residual: torch.Tensor, width: int, scale: float
    ) -> torch.Tensor:
        output = kernel_output(x.shape[0], x.shape[1], x.dtype)
        self._match(
            x[:, None], target, output, width, residual=residual, residual_stride=residual.stride(0), scale=scale
        )
        return output

    def _match(
        self,
        x: torch.Tensor,
        target: torch.Tensor,
        output: torch.Tensor,
        width: int,
        **given: torch.Tensor | float,
    ) -> None:
        self._kernels.match_magnitude.run(
            **{"scale": 1.0} | given,
            x=x,
            target=target,
            output=output,
            rows=x.shape[0],
            groups=x.shape[1],
            width=x.shape[2],
            mean_width=width,
            target_stride=target.stride(0),
            output_stride=output.stride(0),
            number_type=NUMBER_TYPES[x.dtype],
            least=LEAST_SQUARE,
        )

    def cut_off(self, x: torch.Tensor, over: torch.Tensor, count: int, deviations: float) -> None:
        self._kernels.cut_off.run(
            x=x,
            over=over,
            rows=x.shape[0],
            width=x.shape[1],
            over_width=over.shape[1],
            count=count,
            x_stride=x.stride(0),
            over_stride=over.stride(0),
            number_type=NUMBER_TYPES[x.dtype],
            deviations=deviations,
        )


def _like(streams: torch.Tensor) -> torch.Tensor:
    rows, count, width = streams.shape
    return kernel_output(rows, count * width, streams.dtype).view(rows, count, width)


def _one_of(streams: torch.Tensor) -> torch.Tensor:
    return kernel_output(streams.shape[0], streams.shape[2], streams.dtype)
