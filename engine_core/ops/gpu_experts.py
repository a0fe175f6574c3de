"""Experts and grouped linear layers on NVIDIA GPUs, by our own Triton kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from engine_core.kernels.triton import AS_WRITTEN
from engine_core.kernels.triton.experts import expand_rows, reduce_rows, sum_experts
from engine_core.ops.base import ExpertsSplit, GroupedLinearOp, UnloadedExperts
from engine_core.ops.gpu_linear import InvariantLinear
from engine_core.ops.torch import TorchGroupedLinear
from engine_core.weights.experts import ExpertsShape, ExpertWeights

_SUMMED_TOGETHER = 1024


@dataclass(frozen=True, slots=True)
class _Tile:
    """The tiling of products, the same for any number of rows."""

    rows: int
    columns: int
    depth: int
    stages: int

    @staticmethod
    def of(x: torch.Tensor) -> _Tile:
        return _Tile(16, 32, 32, stages=2) if x.dtype == torch.float32 else _Tile(32, 64, 64, stages=3)


class GpuExperts(UnloadedExperts):
    """Unpacked weights, one tensor for all experts. Nothing is read back from the device, so that CUDA graphs can
    capture it.
    """

    def __init__(
        self, shape: ExpertsShape, dtype: torch.dtype, device: torch.device, split: ExpertsSplit | None = None
    ) -> None:
        """Allocate the weights."""
        self._shape = shape
        self._split = split
        self._shard = shape.whole if split is None else split.own
        count, inner, hidden = len(self._shard.experts), len(self._shard.inner), len(self._shard.hidden)
        self._gate_up = torch.empty(count, shape.num_expanding, inner, shape.hidden_size, dtype=dtype, device=device)
        self._down = torch.empty(count, hidden, shape.intermediate_size, dtype=dtype, device=device)
        biases = count if shape.bias else 0
        self._gate_up_bias = torch.empty(biases, 2, inner, device=device)
        self._down_bias = torch.empty(biases, hidden, device=device)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self._gate_up, self._down, self._gate_up_bias, self._down_bias))

    def load(self, experts: Iterable[ExpertWeights]) -> None:
        for index, weights in enumerate(experts):
            places = (*self._gate_up[index], self._down[index])
            for place, tensor in zip(places, weights.tensors, strict=True):
                place.copy_(tensor)
            if weights.biases is not None:
                of_gate, of_up, of_down = weights.biases
                self._gate_up_bias[index, 0], self._gate_up_bias[index, 1] = of_gate, of_up
                self._down_bias[index] = of_down

    def __call__(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        shard, split, top_k = self._shard, self._split, self._shape.top_k
        # Pairs with experts of other ranks are sorted to the end, and get no tiles.
        flat, count = ids.flatten() - shard.experts.start, len(shard.experts)
        flat = torch.where((flat < 0) | (flat >= count), count, flat)
        order = torch.argsort(flat, stable=True).int()
        numbers = torch.arange(count, device=x.device, dtype=flat.dtype)
        ends = (flat <= numbers[:, None]).sum(1, dtype=torch.int32)
        inner = x.new_empty(len(flat), len(shard.inner))
        outputs = x.new_empty(len(flat), len(shard.hidden))
        shares = weights.contiguous()
        self._expand(x.contiguous(), order, ends, shares, inner)
        if split is not None and not split.expert_parallel:
            inner = split.gather_inner(inner.view(len(x), top_k * len(shard.inner)), top_k, int)
        self._reduce(inner, order, ends, shares, outputs)
        if split is not None and split.expert_parallel:
            outputs = split.gather_outputs(outputs, ids)
        total = x.new_empty(len(x), len(shard.hidden))
        sum_experts[(len(x), -(-len(shard.hidden) // _SUMMED_TOGETHER))](
            outputs,
            outputs if residual is None else residual,
            total,
            0 if residual is None else residual.stride(0),
            TOP_K=top_k,
            SIZE=len(shard.hidden),
            BLOCK=_SUMMED_TOGETHER,
            ADDED=residual is not None,
            **AS_WRITTEN,
        )
        return total

    def _expand(
        self, x: torch.Tensor, order: torch.Tensor, ends: torch.Tensor, shares: torch.Tensor, output: torch.Tensor
    ) -> None:
        shape, tile, outputs = self._shape, _Tile.of(x), len(self._shard.inner)
        expand_rows[(self._most_tiles(len(order), tile), -(-outputs // tile.columns))](
            x,
            self._gate_up,
            self._gate_up_bias,
            order,
            ends,
            shares,
            output,
            TOP_K=shape.top_k,
            INPUTS=shape.hidden_size,
            OUTPUTS=outputs,
            WEIGHED=shape.weighs_inputs,
            GATED=shape.gated,
            KIND=int(shape.activation),
            LIMIT=shape.swiglu_limit,
            ALPHA=shape.swiglu_alpha,
            **self._options(x, tile),
        )

    def _reduce(
        self, x: torch.Tensor, order: torch.Tensor, ends: torch.Tensor, shares: torch.Tensor, output: torch.Tensor
    ) -> None:
        tile, outputs = _Tile.of(x), len(self._shard.hidden)
        reduce_rows[(self._most_tiles(len(order), tile), -(-outputs // tile.columns))](
            x,
            self._down,
            self._down_bias,
            order,
            ends,
            shares,
            output,
            INPUTS=self._shape.intermediate_size,
            OUTPUTS=outputs,
            WEIGHED=not self._shape.weighs_inputs,
            **self._options(x, tile),
        )

    def _most_tiles(self, num_pairs: int, tile: _Tile) -> int:
        """An upper bound: every expert with a pair may have one tile that is not full."""
        return num_pairs // tile.rows + min(num_pairs, len(self._shard.experts))

    def _options(self, x: torch.Tensor, tile: _Tile) -> dict[str, Any]:
        count = len(self._shard.experts)
        return {
            "EXPERTS": count,
            "EXPERTS_WIDTH": triton.next_power_of_2(count),
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
            "BIASED": self._shape.bias,
            "IEEE": x.dtype == torch.float32,
            "WIDE": x.device.type == "cpu",  # under Triton's interpreter
            "num_warps": 4,
            "num_stages": tile.stages,
            **AS_WRITTEN,
        }


class LibraryGroupedLinear(TorchGroupedLinear):
    """Computed by torch: a row's result may depend on the number of rows."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.transpose(0, 1), self.weight.transpose(1, 2)).transpose(0, 1).contiguous()


class InvariantGroupedLinear(GroupedLinearOp):
    """One group after the other, by the kernel for linear layers."""

    def __init__(self, weight: torch.Tensor, processors: int) -> None:
        """``processors``: multiprocessors of the device."""
        self._groups = [InvariantLinear(each, None, processors) for each in weight.contiguous()]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self._groups)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([group(x[:, index]) for index, group in enumerate(self._groups)], dim=1)
