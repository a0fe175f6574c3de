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
from engine_core.layers.weights import Weights
from engine_core.ops.base import ExpertsOp, ExpertsShape, ExpertWeights, OpsBackend, Routing
from engine_core.quantization.base import QuantMethod, Unquantized


class ExpertTensors(ABC):
    """How a checkpoint keeps the tensors of experts."""

    @abstractmethod
    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""

    @abstractmethod
    def read(self, weights: Weights, shape: ExpertsShape) -> Iterator[ExpertWeights]:
        """The experts in ascending order; the tensors of one are to be taken before the next is read."""


@dataclass(frozen=True, slots=True)
class SeparateExperts(ExpertTensors):
    """Three tensors for each expert."""

    prefix: str
    """In front of the expert's number: ``model.layers.0.mlp.experts``."""
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"

    def shapes(self, shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
        inner, hidden = shape.intermediate_size, shape.hidden_size
        sizes = ((self.gate, (inner, hidden)), (self.up, (inner, hidden)), (self.down, (hidden, inner)))
        return {self._name(expert, name): size for expert in range(shape.num_experts) for name, size in sizes}

    def read(self, weights: Weights, shape: ExpertsShape) -> Iterator[ExpertWeights]:
        for expert in range(shape.num_experts):
            names = (self._name(expert, name) for name in (self.gate, self.up, self.down))
            yield ExpertWeights(map(weights.take, names))

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

    def read(self, weights: Weights, shape: ExpertsShape) -> Iterator[ExpertWeights]:
        gate_up_name, down_name = self.shapes(shape)
        for expert in range(shape.num_experts):
            yield ExpertWeights(self._tensors(weights, gate_up_name, down_name, expert))

    @staticmethod
    def _tensors(weights: Weights, gate_up: str, down: str, expert: int) -> Iterator[torch.Tensor]:
        yield from weights.take_row(gate_up, expert).chunk(2)
        yield weights.take_row(down, expert)


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

    def read(self, weights: Weights, shape: ExpertsShape) -> Iterator[ExpertWeights]:
        gate_up_name, down_name, *biases = self.shapes(shape)
        gate_up_biases, down_biases = (weights.take_float32(name) for name in biases)
        for expert in range(shape.num_experts):
            bias = gate_up_biases[expert]
            tensors = self._tensors(weights, gate_up_name, down_name, expert)
            yield ExpertWeights(tensors, (bias[::2], bias[1::2], down_biases[expert]))

    @staticmethod
    def _tensors(weights: Weights, gate_up: str, down: str, expert: int) -> Iterator[torch.Tensor]:
        rows = weights.take_row(gate_up, expert).t()
        yield from (rows[::2], rows[1::2])
        yield weights.take_row(down, expert).t()


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
    ) -> None:
        self.outputs_per_row = 2 * shape.top_k * shape.intermediate_size
        inputs, outputs = Features(1, shape.hidden_size), Features(1, shape.num_experts, fixed=True)
        gate = LinearShape((router.gate,), (shape.num_experts,), inputs, outputs, router.bias)
        self.gate = ColumnParallelLinear(gate, backend, Unquantized())
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
        self.experts = self._quant_method.experts(self._shape, self._dtype, self._backend)
        self.experts.load(self._tensors.read(weights, self._shape))

    def weight_bytes(self, itemsize: int) -> int:
        return self.gate.weight_bytes(itemsize) + self._quant_method.expert_bytes(self._shape, itemsize)

    def step_weights(self, itemsize: int) -> tuple[StepWeights, ...]:
        shape = self._shape
        return (
            StepWeights(self.num_weights - shape.num_weights, self.gate.weight_bytes(itemsize)),
            StepWeights(
                shape.num_weights,
                self._quant_method.expert_bytes(shape, itemsize),
                shape.num_experts,
                shape.top_k,
            ),
        )

    @property
    def num_weights(self) -> int:
        """Also of experts whose tensors hold several numbers in a byte."""
        return self.gate.num_weights + len(self._extra_names()) * self._shape.num_experts + self._shape.num_weights

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
        return self.experts(x, ids, weights, residual)
