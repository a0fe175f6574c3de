"""What a step carries through the layers of a model, besides hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_core.attention.base import Angles, AttentionMetadata


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Which of a step's angles, caches and metadata a layer takes."""

    rotation: int | None
    """None: it rotates nothing."""
    cache: int
    group: int


@dataclass(frozen=True, slots=True)
class LayerContext:
    """What one layer takes of a step."""

    angles: Angles | None
    kv_cache: torch.Tensor
    metadata: AttentionMetadata
    rows: torch.Tensor | None
    """[R] int64: the rows that are wanted after its attention; None: all."""
    per_layer: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class IntermediateTensors:
    """What the layers of a stage take of a step from the stage before, or the first ones from the embedding."""

    hidden: torch.Tensor
    """[T, H]"""
    per_layer: torch.Tensor | None = None
    """As in ``ForwardContext``."""

    def tensors(self) -> list[torch.Tensor]:
        """In the order of the fields, those that there are."""
        return [self.hidden] if self.per_layer is None else [self.hidden, self.per_layer]


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What all layers take of a step. Whoever runs a model gives the first three, the model adds the others."""

    kv_caches: list[torch.Tensor]
    """What the attention backend allocated for the model's ``kv_cache_spec``."""
    metadata: Sequence[AttentionMetadata]
    """One entry for each of the model's ``kv_cache_groups``."""
    rows: torch.Tensor | None = None
    """[R] int64: the rows of the step that are wanted; None: all."""
    angles: Sequence[Angles] = ()
    """One entry for each of the model's rotations."""
    per_layer: torch.Tensor | None = None
    """[T, …]: what layers are given of each token besides hidden states, if anything."""

    def of_layer(self, place: LayerPlace, *, is_last: bool) -> LayerContext:
        """What the layer at ``place`` takes: only after the attention of the last one are the other rows not needed."""
        return LayerContext(
            None if place.rotation is None else self.angles[place.rotation],
            self.kv_caches[place.cache],
            self.metadata[place.group],
            self.rows if is_last else None,
            self.per_layer,
        )
