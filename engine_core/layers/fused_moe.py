"""Mixture of experts: a router chooses a few of many feed-forward blocks for each row (Shazeer et al., 2017,
https://arxiv.org/abs/1701.06538). vLLM's ``FusedMoE``.

The router's scores are computed in float32 and never rounded. Of equal scores, the lower expert's counts as greater.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine_core.layers.features import Features, LinearShape
from engine_core.layers.linear import ColumnParallelLinear
from engine_core.layers.part import Part, StepWeights
from engine_core.layers.shares import Shares
from engine_core.layers.weights import TensorRows, Weights
from engine_core.ops.base import ExpertsOp, ExpertsShape, ExpertsShard, ExpertWeights, OpsBackend, Routing
from engine_core.quantization.base import QuantMethod, Unquantized


class ExpertTensors(ABC):
    """How a checkpoint keeps the tensors of experts."""

    prefix: str
    """What the names of all of them begin with: ``model.layers.0.mlp.experts``."""

    @abstractmethod
    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""

    @abstractmethod
    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        """What ``shard`` has of the experts, in ascending order; the tensors of one are to be taken before the next is
        read.
        """


@dataclass(frozen=True, slots=True)
class SeparateExperts(ExpertTensors):
    """Three tensors for each expert."""

    prefix: str
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        inner, hidden = shape.intermediate_size, shape.hidden_size
        sizes = ((self.gate, (inner, hidden)), (self.up, (inner, hidden)), (self.down, (hidden, inner)))
        return {self._name(expert, name): size for expert in range(shape.num_experts) for name, size in sizes}

    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        inner, hidden = shape.intermediate_size, shape.hidden_size
        wanted = ((self.gate, inner, shard.inner), (self.up, inner, shard.inner), (self.down, hidden, shard.hidden))
        for expert in shard.experts:
            tensors = [TensorRows(self._name(expert, name), count, rows) for name, count, rows in wanted]
            yield ExpertWeights(map(weights.take, tensors))

    def _name(self, expert: int, name: str) -> str:
        return f"{self.prefix}.{expert}.{name}.weight"


@dataclass(frozen=True, slots=True)
class StackedExperts(ExpertTensors):
    """All experts in one tensor [E, 2 · I, H] of gates and ups, and one [E, H, I]."""

    prefix: str

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.intermediate_size
        return {
            f"{self.prefix}.gate_up_proj": (experts, 2 * inner, hidden),
            f"{self.prefix}.down_proj": (experts, hidden, inner),
        }

    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        gate_up, down = self.shapes(shape)
        gates, size = shard.inner, shape.intermediate_size
        ups = range(size + gates.start, size + gates.stop)
        wanted = ((gate_up, gates), (gate_up, ups), (down, shard.hidden))
        for expert in shard.experts:
            yield ExpertWeights(weights.take_row(name, each, rows) for each in [expert] for name, rows in wanted)


@dataclass(frozen=True, slots=True)
class InterleavedExperts(ExpertTensors):
    """All experts in one tensor [E, H, 2 · I], in which gates and ups take turns, and one [E, I, H], with biases."""

    prefix: str

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.intermediate_size
        return {
            f"{self.prefix}.gate_up_proj": (experts, hidden, 2 * inner),
            f"{self.prefix}.down_proj": (experts, inner, hidden),
            f"{self.prefix}.gate_up_proj_bias": (experts, 2 * inner),
            f"{self.prefix}.down_proj_bias": (experts, hidden),
        }

    def read(self, weights: Weights, shape: ExpertsShape, shard: ExpertsShard) -> Iterator[ExpertWeights]:
        gate_up_name, down_name, *biases = self.shapes(shape)
        gate_up_biases, down_biases = (weights.take_float32(name) for name in biases)
        for expert in shard.experts:
            tensors = self._tensors(weights, gate_up_name, down_name, expert, shard)
            yield ExpertWeights(tensors, own_biases(gate_up_biases[expert], down_biases[expert], shard))

    @staticmethod
    def _tensors(weights: Weights, gate_up: str, down: str, expert: int, shard: ExpertsShard) -> Iterator[torch.Tensor]:
        inner, hidden = shard.inner, shard.hidden
        rows = weights.take_row(gate_up, expert).t()[2 * inner.start : 2 * inner.stop]
        yield from (rows[::2], rows[1::2])
        yield weights.take_row(down, expert).t()[hidden.start : hidden.stop]


def own_biases(
    gate_up: torch.Tensor, down: torch.Tensor, shard: ExpertsShard
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What ``shard`` has of an expert's biases ``gate_up`` [2 · I], which take turns, and ``down`` [H]."""
    inner, hidden = shard.inner, shard.hidden
    own = gate_up[2 * inner.start : 2 * inner.stop]
    return own[::2], own[1::2], down[hidden.start : hidden.stop]


@dataclass(frozen=True, slots=True)
class RouterTensors:
    """How a checkpoint keeps a router."""

    gate: str
    """[E, H], without ``.weight`` and ``.bias``."""
    bias: bool = False
    correction_bias: str | None = None
    """[E]: added to scores for the choice of experts, not for their weights."""
    expert_scales: str | None = None
    """[E]: factors of the experts' weights."""


class FusedMoE(Part):
    """Router and experts. The router is never quantized."""

    experts: ExpertsOp

    def __init__(
        self,
        shape: ExpertsShape,
        routing: Routing,
        router: RouterTensors,
        tensors: ExpertTensors,
        backend: OpsBackend,
        quant_method: QuantMethod,
        dtype: torch.dtype,
        shares: Shares,
    ) -> None:
        """Every rank has the router, and what ``shares`` gives it of the experts."""
        self.outputs_per_row = 2 * shape.top_k * shape.intermediate_size
        inputs, outputs = Features(1, shape.hidden_size), Features(1, shape.num_experts, fixed=True)
        gate = LinearShape.of(router.gate, inputs, outputs, bias=router.bias)
        self.gate = ColumnParallelLinear(gate, backend, Unquantized())
        self._shares = shares
        self._shard = shares.of_experts(shape)
        # Without expert parallelism a rank has some columns of the sum; else all of them.
        _, _, widths = shares.of_outputs(Features(1, shape.hidden_size))
        self._outputs_of = None if shares.rank.expert_parallel else shares.gather(widths)
        self._shape = shape
        self._routing = routing
        self._router = router
        self._tensors = tensors
        self._backend = backend
        self._quant_method = quant_method
        self._dtype = dtype
        self._of_experts: dict[str, torch.Tensor] = {}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        extras = dict.fromkeys(self._extra_names(), (self._shape.num_experts,))
        return self.gate.tensors() | extras | self._tensors.shapes(self._shape)

    def _extra_names(self) -> list[str]:
        return [name for name in (self._router.correction_bias, self._router.expert_scales) if name is not None]

    def load(self, weights: Weights) -> None:
        self.gate.load(weights)
        self._of_experts = {name: weights.take_float32(name) for name in self._extra_names()}
        split = self._shares.split_experts(self._shape)
        self.experts = self._quant_method.experts(self._shape, self._dtype, self._backend, split)
        self.experts.load(self._tensors.read(weights, self._shape, self._shard))

    def weight_bytes(self, itemsize: int) -> int:
        return self.gate.weight_bytes(itemsize) + self._expert_bytes(itemsize)

    def _expert_bytes(self, itemsize: int) -> int:
        return self._quant_method.expert_bytes(self._shape, itemsize, self._shard)

    def step_weights(self, itemsize: int) -> tuple[StepWeights, ...]:
        shape, count = self._shape, self._shape.num_weights_of(self._shard)
        return (
            StepWeights(self.num_weights - count, self.gate.weight_bytes(itemsize)),
            StepWeights(count, self._expert_bytes(itemsize), shape.num_experts, shape.top_k),
        )

    @property
    def num_weights(self) -> int:
        """Also of experts whose tensors hold several numbers in a byte."""
        extras = len(self._extra_names()) * self._shape.num_experts
        return self.gate.num_weights + extras + self._shape.num_weights_of(self._shard)

    @property
    def nbytes(self) -> int:
        return self.gate.nbytes + self.experts.nbytes + sum(each.nbytes for each in self._of_experts.values())

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, router_input: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[T, H]: each row's experts, summed, plus ``residual``; the router sees ``router_input`` [T, H] if given."""
        logits = self.gate.logits(x if router_input is None else router_input)
        ids, weights = self._backend.route(
            logits,
            self._routing,
            self._of_experts.get(self._router.correction_bias or ""),
            self._of_experts.get(self._router.expert_scales or ""),
        )
        if (parts := self._outputs_of) is None:
            return self.experts(x, ids, weights, residual)
        own = None if residual is None else residual[:, parts.columns]
        return parts.gather(self.experts(x, ids, weights, own))
