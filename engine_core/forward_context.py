"""The data of a step that passes through a model's layers, besides hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from engine_core.attention.base import Angles, AttentionMetadata
from engine_core.states.base import LayerState, StateMetadata


@dataclass(frozen=True, slots=True, eq=False)
class Caches:
    """The memory of a worker's layers that lasts from step to step."""

    kv: list[torch.Tensor]
    """Allocated by the attention backend for the model's ``kv_cache_spec``."""
    states: list[LayerState] = field(default_factory=list)
    """Of the model's layers that keep a state."""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Indices of a layer's angles, cache, metadata and state in a step's."""

    rotation: int | None
    """None: nothing is rotated."""
    cache: int | None
    """None: the layer does not attend; nor has it a ``group``."""
    group: int | None
    state: int | None = None
    """None: the layer keeps no state."""


@dataclass(frozen=True, slots=True)
class LayerContext:
    """A step's data for one layer."""

    angles: Angles | None
    kv_cache: torch.Tensor | None
    """None, like ``metadata``: the layer does not attend."""
    metadata: AttentionMetadata | None
    rows: torch.Tensor | None
    """[R] int64: the rows needed after its attention, or what it has in its place; None: all."""
    per_layer: torch.Tensor | None
    state: LayerState | None = None
    """None: the layer keeps no state."""
    state_metadata: StateMetadata | None = None


@dataclass(frozen=True, slots=True)
class MediaRows:
    """The rows of a step that stand for pictures, and what takes their place."""

    rows: torch.Tensor
    """[M] int64, ascending: places among the step's rows."""
    embeddings: torch.Tensor
    """[M, H], of the model's type: replace the embeddings of the tokens there."""
    deepstack: torch.Tensor | None = None
    """[D, M, H]: entry i is added to the rows behind layer i (Qwen3-VL); None: nothing is."""


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """Takes hidden states on their way through the layers, for a drafter."""

    layers: tuple[int, ...]
    """Those whose inputs are taken, of a model that is one stage."""
    hidden: list[torch.Tensor] = field(default_factory=list)
    """The input [T, H] of each of ``layers``; valid until the next step."""

    def set(self, inputs: Mapping[int, torch.Tensor]) -> None:
        """Take the ``inputs`` of layers, by index."""
        self.hidden[:] = [inputs[layer] for layer in self.layers]


@dataclass(frozen=True, slots=True)
class IntermediateTensors:
    """The input of a stage's layers, from the stage before or, in the first stage, from the embedding."""

    hidden: torch.Tensor
    """[T, H]"""
    per_layer: torch.Tensor | None = None
    """As in ``ForwardContext``."""

    def tensors(self) -> list[torch.Tensor]:
        """All that are not None, in the order of the fields."""
        return [self.hidden] if self.per_layer is None else [self.hidden, self.per_layer]


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """A step's data for all layers. The model itself adds ``angles`` and ``per_layer``; the caller sets the rest."""

    kv_caches: list[torch.Tensor]
    """``Caches.kv``"""
    metadata: Sequence[AttentionMetadata]
    """One entry for each of the model's ``kv_cache_groups``."""
    rows: torch.Tensor | None = None
    """[R] int64: the rows of the step whose results are needed; None: all."""
    angles: Sequence[Angles] = ()
    """One entry for each of the model's rotations."""
    per_layer: torch.Tensor | None = None
    """[T, …]: input of the layers for each token besides hidden states, if any."""
    states: Sequence[LayerState] = ()
    """``Caches.states``"""
    state_metadata: StateMetadata | None = None
    """None: no layer keeps a state."""
    media: MediaRows | None = None
    """None: no row of the step stands for a picture."""
    rotary_positions: torch.Tensor | None = None
    """[3, T] int64: time, height and width, for models that rotate by three positions; None: all are the row's own."""
    token_types: torch.Tensor | None = None
    """[T] int64: which of an input's texts a token is of, for models that tell them apart; None: all are of type 0."""
    taps: Taps | None = None
    """Filled by the layers; None: nobody asks for their inputs."""

    def of_layer(self, place: LayerPlace, *, is_last: bool) -> LayerContext:
        """The data for the layer at ``place``. All rows are needed until the attention of the last layer."""
        return LayerContext(
            None if place.rotation is None else self.angles[place.rotation],
            None if place.cache is None else self.kv_caches[place.cache],
            None if place.group is None else self.metadata[place.group],
            self.rows if is_last else None,
            self.per_layer,
            None if place.state is None else self.states[place.state],
            self.state_metadata,
        )
