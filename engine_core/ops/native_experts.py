"""Routers, experts and grouped linear layers by the native kernels in engine_core/kernels/cpu."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Iterable
from ctypes import Structure
from typing import Protocol

import torch

from engine_core.kernels.arguments import NUMBER_TYPES
from engine_core.kernels.capture import Kernel, kernel_output
from engine_core.kernels.library import Kernels
from engine_core.ops.base import ExpertsOp, ExpertsSplit, Routing, UnloadedExperts
from engine_core.ops.native_lora import NativeExpertsLoRA
from engine_core.ops.native_packing import TILE, PackedWeights, interleave, padded_width
from engine_core.weights.experts import ExpertsShape, ExpertWeights


class NativeGroupedLinear:
    """The weights of all groups, packed as in cpu/interface.h."""

    def __init__(self, kernels: Kernels, weight: torch.Tensor) -> None:
        """Pack ``weight`` [G, N, K]; N and K are multiples of 16."""
        groups, outputs, inputs = weight.shape
        self._kernel = kernels.grouped_linear
        self._weights = PackedWeights(groups, outputs, inputs, weight.dtype, bias=False)
        for group, each in enumerate(weight):
            self._weights.pack(group, each)
        self._arguments = self._kernel.arguments(
            weight=self._weights.packed.data_ptr(),
            groups=groups,
            in_features=inputs,
            out_features=outputs,
            number_type=NUMBER_TYPES[weight.dtype],
        )

    @property
    def nbytes(self) -> int:
        return self._weights.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        assert x.stride(2) == 1
        arguments = self._arguments
        y = kernel_output(x.shape[0], arguments.groups * arguments.out_features, x.dtype)
        arguments.x, arguments.output, arguments.rows = x.data_ptr(), y.data_ptr(), x.shape[0]
        arguments.x_stride, arguments.x_group_stride = x.stride(0), x.stride(1)
        arguments.num_threads = torch.get_num_threads()
        if self._kernel(arguments) != 0:
            raise MemoryError("no memory for the inputs of grouped linear layers")
        return y.view(x.shape[0], arguments.groups, arguments.out_features)


def route(
    kernels: Kernels,
    logits: torch.Tensor,
    routing: Routing,
    correction_bias: torch.Tensor | None,
    expert_scales: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``OpsBackend.route`` with native kernels."""
    rows, num_experts = logits.shape
    ids, weights = kernel_output(rows, routing.top_k, torch.int32), kernel_output(rows, routing.top_k, torch.float32)
    failed = kernels.route.run(
        logits=logits,
        bias=correction_bias,
        expert_scales=expert_scales,
        ids=ids,
        weights=weights,
        rows=rows,
        num_experts=num_experts,
        top_k=routing.top_k,
        num_groups=routing.num_groups,
        topk_groups=routing.topk_groups,
        group_best=routing.group_best,
        scoring=routing.scoring,
        renormalize=routing.renormalize,
        sum_offset=routing.sum_offset,
        scale=routing.scale,
    )
    if failed:
        raise MemoryError("no memory for the scores of experts")
    return ids, weights


class Matrices(Protocol):
    """A packed weight [N, K] per expert."""

    @property
    def nbytes(self) -> int: ...


class PackableMatrices(Matrices, Protocol):
    """Weights that can be packed one at a time."""

    bias: torch.Tensor | None
    """[E, N padded]."""

    def pack(self, index: int, weight: torch.Tensor) -> None:
        """Copy the ``weight`` [N, K] of expert ``index``."""


class Phases(enum.IntEnum):
    """Sums of ``RinglineExpertPhase`` of kernels/cpu/interface.h."""

    GATE_UP = 1
    SUM = 4
    GATE_UP_AND_DOWN = 1 + 2
    DOWN_AND_SUM = 2 + 4
    ALL = 1 + 2 + 4


class PackedExperts(ExpertsOp):
    """Experts by a native kernel. Subclasses pack the weights and allocate the kernel's buffers."""

    _gate_up: Matrices
    _down: Matrices

    def __init__(self, kernel: Kernel, shape: ExpertsShape, split: ExpertsSplit | None, tile: int) -> None:
        """``tile``: outputs of a tile of ``_gate_up``; if experts are gated, its first half is the gate's, its second
        up's.
        """
        self._kernel = kernel
        self._shape = shape
        self._split = split
        self._shard = shape.whole if split is None else split.own
        self._tile_inner = tile // shape.num_expanding
        self._arguments = kernel.arguments(
            hidden=padded_width(shape.hidden_size),
            inner=padded_width(shape.intermediate_size),
            hidden_part=padded_width(len(self._shard.hidden)),
            inner_part=padded_width(len(self._shard.inner)),
            first_expert=self._shard.experts.start,
            num_experts=len(self._shard.experts),
            top_k=shape.top_k,
            activation=shape.activation,
            limit=shape.swiglu_limit,
            alpha=shape.swiglu_alpha,
            weighs_inputs=shape.weighs_inputs,
            gated=shape.gated,
        )

    @property
    def nbytes(self) -> int:
        return self._gate_up.nbytes + self._down.nbytes

    @property
    def _tiles(self) -> int:
        """Tiles of an expert's ``_gate_up``."""
        inner: int = self._arguments.inner_part
        return -(-inner // self._tile_inner)

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        arguments, rows, split = self._arguments, x.shape[0], self._split
        output = kernel_output(rows, arguments.hidden_part, x.dtype)
        rooms = self._rooms(rows, x.dtype)
        for name, room in rooms.items():
            setattr(arguments, name, room.data_ptr())
        arguments.x, arguments.ids, arguments.weights = x.data_ptr(), ids.data_ptr(), weights.data_ptr()
        if self.adapted is not None:
            assert isinstance(self.adapted, NativeExpertsLoRA)
            self.adapted.fill(arguments)
        if residual is None:
            arguments.residual = None
        else:
            arguments.residual, arguments.residual_stride = residual.data_ptr(), residual.stride(0)
        arguments.output, arguments.rows = output.data_ptr(), rows
        arguments.number_type, arguments.num_threads = NUMBER_TYPES[x.dtype], torch.get_num_threads()
        if split is None:
            self._run(Phases.ALL)
        elif split.expert_parallel:
            self._run(Phases.GATE_UP_AND_DOWN)
            outputs = split.gather_outputs(rooms["outputs"].view(-1, arguments.hidden), ids)
            arguments.outputs = outputs.data_ptr()
            self._run(Phases.SUM)
        else:
            self._run(Phases.GATE_UP)
            activated = split.gather_inner(rooms["activated"], arguments.top_k, padded_width)
            arguments.activated = activated.data_ptr()
            self._run(Phases.DOWN_AND_SUM)
        return output

    def _run(self, phases: Phases) -> None:
        self._arguments.phases = phases
        if self._kernel(self._arguments) != 0:
            raise MemoryError("no memory for the rows of experts")

    @abstractmethod
    def _rooms(self, rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Buffers for intermediate results, by their names in the kernel's arguments; ``dtype``: of the rows.

        ``activated`` and, where it is gathered, ``outputs`` are [M, …] of their own type.
        """


class PackingExperts(PackedExperts, UnloadedExperts):
    """Packs weights that come in the model's type, as they are or rounded."""

    _gate_up: PackableMatrices
    _down: PackableMatrices

    def __init__(
        self, kernel: Kernel, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None, tile: int
    ) -> None:
        """``dtype``: of the loaded weights."""
        super().__init__(kernel, shape, split, tile)
        self._dtype = dtype

    def load(self, experts: Iterable[ExpertWeights]) -> None:
        sizes = self._arguments
        gate_up = torch.zeros(self._tiles, self._shape.num_expanding, self._tile_inner, sizes.hidden, dtype=self._dtype)
        down = torch.zeros(sizes.hidden_part, sizes.inner, dtype=self._dtype)
        for expert, weights in enumerate(experts):
            for place in range(self._shape.num_expanding):
                interleave(next(weights.tensors), gate_up[:, place])
            self._gate_up.pack(expert, gate_up.view(-1, sizes.hidden))
            down[: len(self._shard.hidden), : self._shape.intermediate_size] = next(weights.tensors)
            self._down.pack(expert, down)
            if weights.biases is not None:
                assert self._gate_up.bias is not None
                assert self._down.bias is not None
                load_biases(weights.biases, self._gate_up.bias[expert], self._down.bias[expert], self._tile_inner)


def load_biases(
    biases: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    gate_up: torch.Tensor,
    down: torch.Tensor,
    tile_inner: int,
) -> None:
    """Copy an expert's ``biases``; those of gate and up alternate every ``tile_inner`` numbers."""
    tiles = gate_up.view(-1, 2, tile_inner)
    for place in range(2):
        interleave(biases[place][:, None], tiles[:, place, :, None])
    down[: len(biases[2])] = biases[2]


class NativeExperts(PackingExperts):
    """Weights in the model's type."""

    def __init__(
        self, kernels: Kernels, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit | None = None
    ) -> None:
        super().__init__(kernels.experts, shape, dtype, split, TILE)
        arguments = self._arguments
        count = arguments.num_experts
        gate_up = PackedWeights(count, self._tiles * TILE, arguments.hidden, dtype, bias=shape.bias)
        down = PackedWeights(count, arguments.hidden_part, arguments.inner, dtype, bias=shape.bias)
        self._gate_up, self._down = gate_up, down
        arguments.gate_up, arguments.down = gate_up.packed.data_ptr(), down.packed.data_ptr()
        if gate_up.bias is not None and down.bias is not None:
            arguments.gate_up_bias, arguments.down_bias = gate_up.bias.data_ptr(), down.bias.data_ptr()
        self._factor_type = factor_type(kernels, dtype)

    def _rooms(self, rows: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return rooms_for_factors(self._arguments, self._split, self._factor_type, rows, dtype)


def factor_type(kernels: Kernels, dtype: torch.dtype) -> torch.dtype:
    """The type in which inputs of ``dtype`` are multiplied: ``Factor`` of cpu/simd/formats.h."""
    return dtype if dtype == torch.bfloat16 and kernels.instruction_set == "avx512_bf16" else torch.float32


def rooms_for_factors(
    sizes: Structure, split: ExpertsSplit | None, factors: torch.dtype, rows: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """``PackedExperts._rooms`` for kernels that multiply ``factors``; ``sizes``: a ``RinglineExperts``."""
    gathered = kernel_output(rows, sizes.top_k * sizes.hidden, factors)
    of_whole_experts = split is not None and split.expert_parallel
    return {
        "gathered": gathered,
        "activated": kernel_output(rows, sizes.top_k * sizes.inner_part, factors),
        "outputs": kernel_output(rows, sizes.top_k * sizes.hidden, dtype) if of_whole_experts else gathered,
    }
