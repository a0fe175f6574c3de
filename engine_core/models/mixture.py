"""What models with experts share: how many there are, which layers have them, and one that every row goes through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.layers.fused_moe import FusedMoE
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import FeedForward
from engine_core.models.model_config import ArchitectureConfig, positive, positive_number, whole_number
from engine_core.ops.base import ExpertsShape, Routing, Scoring
from engine_core.quantization.base import Features

_MOST_EXPERTS = 4096
"""The most experts of a layer, each of which has tensors of its own."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of a model."""

    shape: ExpertsShape
    routing: Routing
    is_sparse: tuple[bool, ...]
    """Which layers have experts; the others have a dense feed-forward block."""
    shared_size: int | None = None
    """Inner size of the expert that every row goes through, if there is one."""


def read_experts(
    config: PretrainedConfig,
    fields: dict[str, Any],
    *,
    num_experts: str,
    intermediate_size: str,
    top_k: str = "num_experts_per_tok",
) -> ExpertsShape:
    """The experts that ``config`` describes; the last three arguments name its fields. Raises ``CheckpointError``."""
    count, chosen = positive(config, num_experts, _MOST_EXPERTS), positive(config, top_k)
    if chosen > count:
        raise CheckpointError(f"{top_k}={chosen} is not usable: expected at most {num_experts}={count}")
    size = positive(config, intermediate_size)
    return ExpertsShape(count, chosen, fields["hidden_size"], size, fields["activation"])


def sparse_from(config: PretrainedConfig, num_layers: int) -> tuple[bool, ...]:
    """Which layers have experts: those from ``first_k_dense_replace`` on. Raises ``CheckpointError``."""
    first = whole_number(config, "first_k_dense_replace")
    if first > num_layers:
        raise CheckpointError(
            f"first_k_dense_replace={first} is not usable: expected at most num_hidden_layers={num_layers}"
        )
    return tuple(layer >= first for layer in range(num_layers))


def shared_size(config: PretrainedConfig, shape: ExpertsShape) -> int | None:
    """Inner size of ``n_shared_experts``, which are one as large as all of them; None for 0 of them."""
    count = whole_number(config, "n_shared_experts")
    return shape.intermediate_size * count or None


def check_only(raw: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse a configuration with another value than the ``known`` one of a field that transformers passes over.

    Raises ``UnsupportedModelError``.
    """
    for name, value in known.items():
        if (given := raw.get(name)) is not None and given != value:
            raise UnsupportedModelError(f"{name}={given!r} is not supported: expected {value!r}")


def grouped_routing(config: PretrainedConfig, shape: ExpertsShape, group_best: int, **options: Any) -> Routing:
    """Routing among the experts of ``topk_group`` of ``n_group`` groups. Raises ``CheckpointError``."""
    groups, chosen = positive(config, "n_group"), positive(config, "topk_group")
    if shape.num_experts % groups:
        raise CheckpointError(
            f"n_group={groups} is not usable: expected a divisor of n_routed_experts={shape.num_experts}"
        )
    size = shape.num_experts // groups
    if chosen > groups:
        raise CheckpointError(f"topk_group={chosen} is not usable: expected at most n_group={groups}")
    if shape.top_k > chosen * size:
        raise CheckpointError(
            f"num_experts_per_tok={shape.top_k} is not usable: expected at most {chosen * size}, the experts in "
            f"topk_group={chosen} of n_group={groups} groups (n_routed_experts={shape.num_experts})"
        )
    if group_best > size and chosen < groups:
        raise CheckpointError(f"n_group={groups} is not usable: expected groups of at least {group_best} experts")
    scale = positive_number(config, "routed_scaling_factor")
    best = min(group_best, size)
    return Routing(shape.top_k, scale=scale, num_groups=groups, topk_groups=chosen, group_best=best, **options)


def biased_sigmoid_routing(config: PretrainedConfig, shape: ExpertsShape) -> Routing:
    """DeepSeek V3's (https://arxiv.org/abs/2412.19437): a bias corrects the choice, and groups count by their two
    highest.
    """
    renormalize = bool(config.norm_topk_prob)
    return grouped_routing(config, shape, 2, scoring=Scoring.SIGMOID, renormalize=renormalize)


class SharedExperts:
    """Experts that a router chooses, and one that every row goes through, perhaps through a gate."""

    def __init__(
        self,
        routed: FusedMoE,
        shared: FeedForward,
        layers: PartFactory,
        config: ArchitectureConfig,
        gate: str | None = None,
    ) -> None:
        """``gate`` names a projection to one logit, whose sigmoid is a factor of the shared expert's output."""
        self._routed = routed
        self._shared = shared
        self._gate = None if gate is None else layers.row_gate(gate, Features(1, config.hidden_size))

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        if self._gate is None:
            return self._routed(x, self._shared(x, residual))
        assert residual is not None
        return self._routed(x, self._gate(x, self._shared(x, None), residual))
