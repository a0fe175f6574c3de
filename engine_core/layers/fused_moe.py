"""Mixture of experts: a router chooses a few of many feed-forward blocks for each row (Shazeer et al., 2017,
https://arxiv.org/abs/1701.06538). vLLM's ``FusedMoE``.

The router's scores are computed in float32 and never rounded. Ties go to the lower expert.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.layers.linear import ColumnParallelLinear
from engine_core.layers.lora import LoRALayers
from engine_core.layers.part import Part, StepWeights
from engine_core.layers.shares import Shares
from engine_core.ops.base import ExpertsOp, OpsBackend, Routing
from engine_core.quantization.base import QuantMethod
from engine_core.weights.expert_tensors import ExpertTensors
from engine_core.weights.experts import ExpertsShape
from engine_core.weights.features import Features, LinearShape
from engine_core.weights.source import Weights


@dataclass(frozen=True, slots=True)
class RouterTensors:
    """The names of a router's tensors in a checkpoint."""

    gate: str
    """[E, H], without ``.weight`` and ``.bias``."""
    bias: bool = False
    correction_bias: str | None = None
    """[E]: added to scores for the choice of experts, not for their weights."""
    is_row: bool = False
    """Whether the correction is stored as [1, E]."""
    expert_scales: str | None = None
    """[E]: factors for the experts' weights."""
    inputs: int | None = None
    """Width of what the router reads; None: that of the experts' inputs."""


class RoutedExperts(Part):
    """The experts of a layer; each row's are chosen elsewhere."""

    experts: ExpertsOp

    def __init__(
        self,
        shape: ExpertsShape,
        tensors: ExpertTensors,
        backend: OpsBackend,
        quant_method: QuantMethod,
        shares: Shares,
        lora: LoRALayers | None = None,
    ) -> None:
        """``quant_method`` reads this rank's share. ``lora``: None if adapters cannot add to the outputs."""
        self.shape = shape
        self.outputs_per_row = shape.num_expanding * shape.top_k * shape.intermediate_size
        self._shares = shares
        self._shard = shares.of_experts(shape)
        # Without expert parallelism a rank computes some columns of the sum; else all of them.
        _, _, widths = shares.of_outputs(Features(1, shape.hidden_size))
        self._outputs_of = None if shares.rank.expert_parallel else shares.gather(widths)
        self._tensors = tensors
        self._backend = backend
        self._quant_method = quant_method
        self._lora = None if lora is None else lora.experts(shape, self._shard, tensors)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return self._quant_method.expert_tensors(self.shape, self._tensors)

    def load(self, weights: Weights) -> None:
        split = self._shares.split_experts(self.shape)
        self.experts = self._quant_method.load_experts(self.shape, self._tensors, weights, self._backend, split)
        if self._lora is not None:
            self.experts.adapted = self._lora.op

    def weight_bytes(self, itemsize: int) -> int:
        if self._backend.expands_experts:
            return self.shape.num_weights_of(self._shard) * itemsize
        return self._quant_method.expert_bytes(self.shape, self._tensors, itemsize, self._shard)

    def step_weights(self, itemsize: int) -> tuple[StepWeights, ...]:
        count, size = self.shape.num_weights_of(self._shard), RoutedExperts.weight_bytes(self, itemsize)
        return (StepWeights(count, size, self.shape.num_experts, self.shape.top_k),)

    @property
    def num_weights(self) -> int:
        """Also right for experts whose tensors pack several numbers into a byte."""
        return self.shape.num_weights_of(self._shard)

    @property
    def nbytes(self) -> int:
        return self.experts.nbytes

    def combine(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """[T, H]: the experts ``ids`` [T, k] int32 of each row, times ``weights`` [T, k] float32, plus ``residual``."""
        if (parts := self._outputs_of) is None:
            return self.experts(x, ids, weights, residual)
        own = None if residual is None else residual[:, parts.columns]
        return parts.gather(self.experts(x, ids, weights, own))


class FusedMoE(RoutedExperts):
    """Router and experts. The router is never quantized: a quantized one in a checkpoint is expanded."""

    def __init__(
        self,
        shape: ExpertsShape,
        routing: Routing,
        router: RouterTensors,
        tensors: ExpertTensors,
        backend: OpsBackend,
        quant_method: QuantMethod,
        shares: Shares,
        router_method: QuantMethod,
        lora: LoRALayers | None = None,
    ) -> None:
        """Every rank has the router and its share of the experts."""
        super().__init__(shape, tensors, backend, quant_method, shares, lora)
        inputs, outputs = Features(1, router.inputs or shape.hidden_size), Features(1, shape.num_experts, fixed=True)
        gate = LinearShape.of(router.gate, inputs, outputs, bias=router.bias)
        self.gate = ColumnParallelLinear(gate, backend, router_method.expanding, lora)
        self._routing = routing
        self._router = router
        self._of_experts: dict[str, torch.Tensor] = {}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        extras: dict[str, tuple[int, ...]] = dict.fromkeys(self._extra_names(), (self.shape.num_experts,))
        if self._router.correction_bias is not None and self._router.is_row:
            extras[self._router.correction_bias] = (1, self.shape.num_experts)
        return self.gate.tensors() | extras | super().tensors()

    def _extra_names(self) -> list[str]:
        return [name for name in (self._router.correction_bias, self._router.expert_scales) if name is not None]

    def load(self, weights: Weights) -> None:
        self.gate.load(weights)
        self._of_experts = {name: weights.take_float32(name).flatten() for name in self._extra_names()}
        super().load(weights)

    def weight_bytes(self, itemsize: int) -> int:
        return self.gate.weight_bytes(itemsize) + super().weight_bytes(itemsize)

    def step_weights(self, itemsize: int) -> tuple[StepWeights, ...]:
        count = self.num_weights - super().num_weights
        return StepWeights(count, self.gate.weight_bytes(itemsize)), *super().step_weights(itemsize)

    @property
    def num_weights(self) -> int:
        extras = len(self._extra_names()) * self.shape.num_experts
        return self.gate.num_weights + extras + super().num_weights

    @property
    def nbytes(self) -> int:
        return self.gate.nbytes + super().nbytes + sum(each.nbytes for each in self._of_experts.values())

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, router_input: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[T, H]: each row's experts, summed, plus ``residual``; the router reads ``router_input`` if given."""
        logits = self.gate.logits(x if router_input is None else router_input)
        ids, weights = self._backend.route(
            logits,
            self._routing,
            self._of_experts.get(self._router.correction_bias or ""),
            self._of_experts.get(self._router.expert_scales or ""),
        )
        return self.combine(x, ids, weights, residual)
