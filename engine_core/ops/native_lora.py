"""What adapters add, by the native kernel in engine_core/kernels/cpu/lora."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine_core.kernels.arguments import NUMBER_TYPES, structures
from engine_core.kernels.capture import check, current_capture
from engine_core.kernels.library import Kernels
from engine_core.kernels.memory import empty_for_streaming
from engine_core.ops.lora import (
    ExpertsLoRA,
    LoRAOp,
    LoRAOps,
    LoRAOutputs,
    LoRAWeights,
    MergedLoRA,
    PackedAdapter,
    StepAdapters,
    grouped,
)
from engine_core.ops.native_packing import PANEL, pack_rows, padded_width

_LINE = 64
"""Numbers at whose multiples packed matrices begin: at least a cache line."""


class _Span(NamedTuple):
    """Neighbouring outputs that have the same ranks: a ``RinglineLoraSpan``."""

    b: torch.Tensor
    """[G or 1, outputs, ranks]"""
    column: int
    rank: int

    @classmethod
    def all_of(cls, outputs: LoRAOutputs, rank: int, width: int) -> list[_Span]:
        """Ranks from ``rank`` on, padded with zeros to ``width``."""
        b = grouped(outputs.b)
        if width > len(outputs.ranks):
            b = torch.nn.functional.pad(b, (0, width - len(outputs.ranks)))
        breaks = (outputs.columns.diff() != 1).nonzero()[:, 0] + 1
        starts = [0, *breaks.tolist()]
        return [
            cls(b[:, start:end], int(outputs.columns[start]), rank)
            for start, end in zip(starts, [*starts[1:], len(outputs.columns)], strict=True)
        ]


class _Unpacked:
    """An adapter's weights for one layer, before they are packed: a ``RinglineLoraLayer``."""

    def __init__(self, weights: LoRAWeights, together: int) -> None:
        """Ranks come in the order of the outputs, from multiples of ``together`` on; those in between are zeros."""
        places = dict[tuple[int, int], int]()
        rows = list[int]()  # of A, or −1
        self.spans = list[_Span]()
        for outputs in weights.outputs:
            ranks, width = outputs.ranks, -(-len(outputs.ranks) // together) * together
            place = places.setdefault((ranks.start, ranks.stop), len(rows))
            if place == len(rows):
                rows += [*ranks, *[-1] * (width - len(ranks))]
            self.spans += _Span.all_of(outputs, place, width)
        rows += [-1] * (padded_width(len(rows)) - len(rows))
        self.a = grouped(weights.a)[:, rows]
        """[G or 1, R, K]"""
        self.scales = weights.scales[..., rows].contiguous()
        """[R] float32, of experts [G, R]"""
        zeros = torch.tensor(rows) < 0
        self.a[:, zeros] = self.scales[..., zeros] = 0
        self.experts = weights.experts

    @property
    def matrices(self) -> list[torch.Tensor]:
        """In the order in which a step reads them."""
        return [self.a, *(span.b for span in self.spans)]

    def table(self, places: list[int]) -> tuple[ctypes.Structure, ctypes.Array[ctypes.Structure]]:
        """Its structure and those of its spans, whose matrices lie at ``places``."""
        panels, spans = 0, []
        for span, place in zip(self.spans, places[1:], strict=True):
            groups, columns, ranks = span.b.shape
            panels += -(-columns // PANEL)
            spans.append(
                structures()["RinglineLoraSpan"](
                    b=place,
                    b_group_stride=padded_width(columns) * ranks if groups > 1 else 0,
                    column=span.column,
                    columns=columns,
                    rank=span.rank,
                    ranks=ranks,
                    panels_end=panels,
                )
            )
        groups, ranks, inputs = self.a.shape
        listed = (structures()["RinglineLoraSpan"] * len(spans))(*spans)
        layer = structures()["RinglineLoraLayer"](
            a=places[0],
            scales=self.scales.data_ptr(),
            spans=ctypes.addressof(listed),
            a_group_stride=ranks * inputs if groups > 1 else 0,
            experts=None if self.experts is None else self.experts.data_ptr(),
            scales_group_stride=ranks if self.scales.ndim > 1 else 0,
            ranks=ranks,
            panels=panels,
            products=ranks * inputs + sum(span.b[0].numel() for span in self.spans),
        )
        return layer, listed


@dataclass(frozen=True, slots=True, eq=False)
class NativeAdapter:
    """An adapter in the kernel's layout."""

    layers: ctypes.Array[ctypes.Structure]
    """``RinglineLoraLayer`` by number."""
    weights: torch.Tensor
    """A and B of all layers, one after the other."""
    merged: tuple[torch.Tensor, ...]
    """Of small layers."""
    kept: tuple[object, ...]
    """What the layers point to besides."""

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes + ctypes.sizeof(self.layers) + sum(each.nbytes for each in self.merged)


class NativeLoRA(LoRAOp):
    """A call of the kernel, for one layer."""

    def __init__(self, ops: NativeLoRAOps, groups: int, inputs: int) -> None:
        super().__init__(ops.num_layers)
        self._ops = ops
        self._arguments = ops.kernel.arguments(
            step=ctypes.addressof(ops.filled), groups=groups, in_features=inputs, layer=self.layer
        )

    def __call__(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> None:
        captured = current_capture()
        if captured is not None:
            captured.keep(self._ops)
        elif not self._ops.filled.num_adapters:
            return
        assert x.stride(-1) == y.stride(-1) == 1
        arguments = self._arguments
        arguments.x, arguments.y, arguments.rows = x.data_ptr(), y.data_ptr(), len(x)
        arguments.x_stride, arguments.y_stride = x.stride(0), y.stride(0)
        if x.ndim == 3:
            arguments.x_group_stride, arguments.y_group_stride = x.stride(1), y.stride(1)
        arguments.number_type, arguments.wide = NUMBER_TYPES[x.dtype], y.dtype == torch.float32
        arguments.scale, arguments.num_threads = scale, torch.get_num_threads()
        check(self._ops.kernel(arguments))


class NativeExpertsLoRA(ExpertsLoRA):
    """The kernels of experts add by themselves, with these arguments."""

    def __init__(self, ops: NativeLoRAOps, layer: int) -> None:
        super().__init__(layer)
        self._ops = ops

    def fill(self, arguments: ctypes.Structure) -> None:
        """Set those of a ``RinglineExperts`` for a call, or for one that is captured."""
        arguments.adapters, arguments.lora_layer = ctypes.addressof(self._ops.filled), self.layer
        if (captured := current_capture()) is not None:
            captured.keep(self._ops)


class NativeMergedLoRA(MergedLoRA):
    """The kernels of small layers find their rows' weights by these arguments."""

    def __init__(self, ops: NativeLoRAOps, layer: int) -> None:
        super().__init__(layer)
        self._ops = ops

    def arguments(self) -> dict[str, int]:
        """Those of a ``RinglineStreams``, for a call, or for one that is captured."""
        if (captured := current_capture()) is not None:
            captured.keep(self._ops)
        return {"adapters": ctypes.addressof(self._ops.filled), "lora_layer": self.layer}


class NativeLoRAOps(LoRAOps):
    """Captured calls of the kernel find the adapters of each step at one address."""

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self.kernel = kernels.lora
        self.filled = structures()["RinglineLoraStep"]()
        """The step under way, which calls read; without adapters in between."""
        self._step: StepAdapters | None = None
        self._addresses: ctypes.Array[ctypes.c_void_p] | None = None

    def linear(self, inputs: int, outputs: int) -> LoRAOp:
        return self.grouped_linear(1, inputs, outputs)

    def grouped_linear(self, groups: int, inputs: int, outputs: int) -> LoRAOp:
        op = NativeLoRA(self, groups, inputs)
        self._next_layer()
        return op

    def _of_experts(self, layer: int) -> ExpertsLoRA:
        return NativeExpertsLoRA(self, layer)

    def _of_merged(self, layer: int) -> MergedLoRA:
        return NativeMergedLoRA(self, layer)

    def pack(
        self, layers: Mapping[int, LoRAWeights], dtype: torch.dtype, merged: Mapping[int, torch.Tensor] | None = None
    ) -> PackedAdapter:
        together = 2 if dtype == torch.bfloat16 else 1
        unpacked = {layer: _Unpacked(weights, together) for layer, weights in layers.items() if weights.outputs}
        matrices = [matrix for layer in unpacked.values() for matrix in layer.matrices]
        packed = empty_for_streaming((sum(map(_packed_numbers, matrices)),), dtype)
        places, start = [], 0
        for matrix in matrices:
            places.append(packed[start:].data_ptr())
            _pack(matrix, packed[start:])
            start += _packed_numbers(matrix)
        table = (structures()["RinglineLoraLayer"] * self.num_layers)()
        kept = list[object]()
        for number, layer in unpacked.items():
            used, places = places[: len(layer.matrices)], places[len(layer.matrices) :]
            table[number], spans = layer.table(used)
            kept += [layer.scales, layer.experts, spans]
        merged = merged or {}
        for number, weight in merged.items():
            table[number].merged = weight.data_ptr()
        return NativeAdapter(table, packed, tuple(merged.values()), tuple(kept))

    def begin(self, step: StepAdapters) -> None:
        assert self._step is None
        adapters = [adapter for adapter in step.adapters if isinstance(adapter, NativeAdapter)]
        assert all(len(adapter.layers) == self.num_layers for adapter in adapters)
        assert len(adapters) == len(step.adapters)
        self._step = step  # which owns what the kernel reads
        self._addresses = (ctypes.c_void_p * len(adapters))(*(ctypes.addressof(adapter.layers) for adapter in adapters))
        filled = self.filled
        filled.adapters = ctypes.addressof(self._addresses)
        filled.starts, filled.rows = step.of_all.starts.ctypes.data, step.of_all.rows.ctypes.data
        filled.wanted_starts, filled.wanted_rows = step.of_wanted.starts.ctypes.data, step.of_wanted.rows.ctypes.data
        filled.num_rows, filled.num_adapters = step.num_rows, len(adapters)

    def end(self) -> None:
        self.filled.num_adapters = 0
        self._step = self._addresses = None


def _packed_numbers(matrix: torch.Tensor) -> int:
    """How many numbers a matrix [G, rows, width] takes when packed, and up to where the next one begins."""
    groups, rows, width = matrix.shape
    return -(-groups * padded_width(rows) * width // _LINE) * _LINE


def _pack(matrix: torch.Tensor, to: torch.Tensor) -> None:
    """Write ``matrix`` [G, rows, width], each group in panels, to the beginning of ``to``; round to its type."""
    groups, rows, width = matrix.shape
    together = 2 if to.dtype == torch.bfloat16 else 1
    shape = groups, padded_width(rows) // PANEL, width // together, PANEL, together
    for each, packed in zip(matrix.to(to.dtype), to[: groups * padded_width(rows) * width].view(shape), strict=True):
        pack_rows(each, packed)
