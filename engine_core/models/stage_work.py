"""Estimates each layer's work in a step, so that pipeline stages take about the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, ShortConvSpec, StateSpec
from engine_core.weights.experts import ExpertsShape

_SEQUENCES = 16
"""Sequences per step for which stages are balanced; they use only a part of the experts."""


_WEIGHT_BYTES = 2


class Layers(Protocol):
    """The attributes used of a ``ModelShape``, besides its ``mixture``, if any."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def cache_specs(self) -> Sequence[LayerCacheSpec | None]: ...
    @property
    def state_specs(self) -> Sequence[StateSpec | None]: ...


def work_of_layers(config: Layers) -> list[int]:
    """About how many of each layer's weights a step of ``_SEQUENCES`` reads; its states count as weights.

    Every layer has a feed-forward block.
    """
    return [
        _attention(config, layer) + _states(config, layer) + _feed_forward(config, layer)
        for layer in range(config.num_layers)
    ]


def work_of_head(config: Layers) -> int:
    """The number of the head's weights."""
    return config.vocab_size * config.hidden_size


def _attention(config: Layers, layer: int) -> int:
    spec = config.cache_specs[layer]
    if spec is None:
        return 0
    if isinstance(spec, AttentionSpec):
        return config.hidden_size * 2 * (config.num_heads + spec.num_kv_heads) * spec.head_dim
    return config.hidden_size * 2 * config.num_heads * config.head_dim


def _states(config: Layers, layer: int) -> int:
    """The projections around a layer's state, and the state itself, which every sequence reads and writes."""
    spec = config.state_specs[layer]
    if spec is None:
        return 0
    if isinstance(spec, ShortConvSpec):  # its input has two gates
        return 4 * config.hidden_size * spec.channels
    gated = 2 * spec.num_heads * spec.value_dim  # the gate before the output, and the output
    moved = 2 * spec.nbytes(_WEIGHT_BYTES) // _WEIGHT_BYTES
    return config.hidden_size * (spec.channels + gated) + _SEQUENCES * moved


def _feed_forward(config: Layers, layer: int) -> int:
    mixture = getattr(config, "mixture", None)
    inner = config.intermediate_size
    if mixture is not None and mixture.is_sparse[layer]:
        inner = round(met_experts(mixture.shape) * mixture.shape.intermediate_size) + (mixture.shared_size or 0)
    return 3 * config.hidden_size * inner


def met_experts(shape: ExpertsShape) -> float:
    """About how many experts of a layer a step of ``_SEQUENCES`` reads."""
    return shape.num_experts * (1 - (1 - shape.top_k / shape.num_experts) ** _SEQUENCES)
