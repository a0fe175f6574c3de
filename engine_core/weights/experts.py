"""The sizes of a model's experts, a rank's shard of them, and the weights of one expert."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from engine_core.activation import Activation
from engine_core.distributed.ranks import UNIT, cut
from engine_core.weights.quantized_weight import QuantizedWeight


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """Feed-forward blocks of one size."""

    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    activation: Activation
    bias: bool = False
    swiglu_limit: float = 0.0
    """For ``Activation.CLAMPED_SWIGLU``, like ``swiglu_alpha``."""
    swiglu_alpha: float = 0.0
    weighs_inputs: bool = False
    """Whether a row's weights multiply its experts' inputs, instead of their outputs."""
    gated: bool = True
    """Whether experts are down(f(gate(x)) · up(x)), instead of down(f(up(x))), which have no biases."""

    @property
    def whole(self) -> ExpertsShard:
        """The shard of a single rank."""
        return ExpertsShard(range(self.num_experts), range(self.intermediate_size), range(self.hidden_size))

    def shards(self, ranks: int, *, expert_parallel: bool) -> tuple[ExpertsShard, ...]:
        """The shards of ``ranks`` ranks: with ``expert_parallel``, whole experts; else the same outputs of all."""
        whole = self.whole
        if expert_parallel:
            return tuple(replace(whole, experts=experts) for experts in cut(self.num_experts, ranks))
        parts = zip(cut(self.intermediate_size, ranks, UNIT), cut(self.hidden_size, ranks, UNIT), strict=True)
        return tuple(replace(whole, inner=inner, hidden=hidden) for inner, hidden in parts)

    @property
    def num_expanding(self) -> int:
        """Projections before the activation: gate and up, or up alone."""
        return 2 if self.gated else 1

    @property
    def inputs(self) -> tuple[int, ...]:
        """Inputs of gate, if any, up and down."""
        return *(self.hidden_size,) * self.num_expanding, self.intermediate_size

    @property
    def num_weights(self) -> int:
        """Weights of all experts, biases included."""
        return self.num_weights_of(self.whole)

    def num_weights_of(self, shard: ExpertsShard) -> int:
        inner, hidden = len(shard.inner), len(shard.hidden)
        biases = self.num_expanding * inner + hidden if self.bias else 0
        products = self.num_expanding * inner * self.hidden_size + hidden * self.intermediate_size
        return len(shard.experts) * (products + biases)


@dataclass(frozen=True, slots=True)
class ExpertsShard:
    """One rank's share of the experts."""

    experts: range
    inner: range
    """The rank's outputs of gate, and of up."""
    hidden: range
    """The rank's outputs of down."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights of one expert."""

    tensors: Iterator[torch.Tensor]
    """Gate [I, H], if any, up [I, H] and down [H, I]; in a shard, its outputs: [I′, H], [I′, H] and [H′, I]. Each is
    read when taken.
    """
    biases: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    """[I], [I] and [H]; in a shard, [I′], [I′] and [H′]."""


@dataclass(frozen=True, slots=True)
class QuantizedExpertWeights:
    """The weights of one expert that stay quantized."""

    tensors: Iterator[Iterable[QuantizedWeight]]
    """As in ``ExpertWeights``, each a few rows at a time."""
    biases: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    """As in ``ExpertWeights``."""
    input_orders: tuple[torch.Tensor, torch.Tensor] | None = None
    """For gate and up [H], and for down [I]: the input of each column; None: in order."""

    def expanded(self, shape: ExpertsShape, dtype: torch.dtype) -> ExpertWeights:
        whole = (torch.cat([part.dequantized().to(dtype) for part in parts]) for parts in self.tensors)
        if self.input_orders is not None:
            of_inputs, of_inner = (order.argsort() for order in self.input_orders)
            all_orders = *(of_inputs,) * shape.num_expanding, of_inner
            whole = (weight[:, order] for weight, order in zip(whole, all_orders, strict=True))
        return ExpertWeights(whole, self.biases)
