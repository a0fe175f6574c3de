"""The base class of Ringline's own models: what embeds, a family's layers, and what follows them.

Symbols in shapes: T rows of a step, R wanted rows, H hidden size with the backend's padding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

import torch
from transformers import PretrainedConfig

from engine_core.forward_context import ForwardContext, IntermediateTensors, LayerContext, LayerPlace
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import Rotary
from engine_core.models.language_model import StagedModel, group_of_layers
from engine_core.models.model_config import ArchitectureConfig
from engine_core.ops.base import DecoderStack
from engine_core.weights.source import Weights


class DecoderLayer(Protocol):
    """Attention and feed-forward, each added to the residual stream."""

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """[R, H] for the wanted rows of ``hidden`` [T, H], or [T, H] for all; writes to the layer's cache."""


class LayeredModel(StagedModel):
    """An embedding and a family's layers, and what follows them; or one of its pipeline stages."""

    model_type: ClassVar[str]
    """``model_type`` in config.json."""
    prefix: ClassVar[str] = "model"
    """The prefix of all tensors' names but the head's."""
    layers_name: ClassVar[str] = "layers"
    """Below the prefix."""
    layer_class: ClassVar[Callable[..., DecoderLayer]]
    """Takes the configuration, the layer's index, its tensors' prefix, and the part factory."""
    config: ArchitectureConfig
    rotaries: list[Rotary]
    """For ``config.distinct_ropes``; set by ``load``."""

    @classmethod
    @abstractmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        """Read ``config``. Raises ``CheckpointError``, ``UnsupportedModelError``."""

    def add_layers(self, parts: PartFactory) -> None:
        """Make the layers, and what follows the last one; call once."""
        self._layers = dict(zip(self.stage_layers, self.make_layers(parts), strict=True))
        self._norm = self.make_norm(parts) if self.has_head else None
        self._set_layers(self.stage_layers)

    def make_layers(self, parts: PartFactory) -> list[DecoderLayer]:
        """The layers of ``stage_layers``."""
        make, prefix = type(self).layer_class, f"{self.prefix}.{self.layers_name}"
        return [make(self.config, index, f"{prefix}.{index}", parts) for index in self.stage_layers]

    @abstractmethod
    def make_norm(self, parts: PartFactory) -> Callable[[torch.Tensor], torch.Tensor]:
        """What follows the last layer."""

    def make_stack(self, layers: Sequence[tuple[DecoderLayer, LayerPlace]]) -> DecoderStack:
        """Everything between embedding and head, with these ``layers``."""
        return LayersAndNorm(layers, self._norm, self._factory.backend.kept)

    def layer_kind(self, index: int) -> Hashable:
        config = self.config
        is_caching = config.cache_owners[index] == index
        is_sparse = config.mixture is not None and config.mixture.is_sparse[index]
        specs = config.cache_specs[index], config.state_specs[index]
        return config.sliding_windows[index], config.ropes[index], *specs, is_caching, is_sparse

    def is_of_layer(self, name: str) -> bool:
        return name.startswith(f"{self.prefix}.{self.layers_name}.")

    def load(self, weights: Weights) -> None:
        """Compute the angles of all positions, then load as ``LanguageModel`` does."""
        self.rotaries = [Rotary(rope, self._max_model_len, self._factory.device) for rope in self.config.distinct_ropes]
        super().load(weights)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        return self.forward_stage(self.first_input(input_ids, positions, context), positions, context)

    def first_input(
        self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext | None = None
    ) -> IntermediateTensors:
        if self.is_first_stage:
            media = None if context is None else context.media
            hidden = self.embed(input_ids, positions, None if context is None else context.token_types)
            return IntermediateTensors(hidden if media is None else hidden.index_copy(0, media.rows, media.embeddings))
        return IntermediateTensors(*(self._made_up(input_ids, shape) for shape in self.received_shapes(len(input_ids))))

    def forward_stage(
        self, given: IntermediateTensors, positions: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        angles = [rotary.angles(positions, context.rotary_positions) for rotary in self.rotaries]
        context = replace(context, angles=angles, per_layer=given.per_layer)
        if context.media is not None and context.media.deepstack is not None:
            return self._layers_with_features(given.hidden, context)
        return self._run_layers(given.hidden, context)

    def received_shapes(self, rows: int) -> list[tuple[int, ...]]:
        return [(rows, self._factory.backend.padded(self.config.hidden_size))]

    def for_next_stage(self, given: IntermediateTensors, hidden: torch.Tensor) -> IntermediateTensors:
        return IntermediateTensors(hidden)

    def _made_up(self, input_ids: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """Numbers from −1 to 1, exact in every type, that depend on a row's id and their position in it."""
        places = torch.arange(math.prod(shape[1:]), device=input_ids.device).view(shape[1:])
        mixed = (input_ids.view(-1, *[1] * places.ndim) * 31 + places * 7919) % 255 - 127
        return mixed.to(self._factory.dtype).div_(128)

    @abstractmethod
    def embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, token_types: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The first layer's input [T, H] for ``input_ids`` at ``positions`` [T] int64; ``token_types`` as in
        ``ForwardContext``.
        """

    def metadata_of_layers(self) -> list[int | None]:
        """For each layer, the place of its metadata among the step's; None: it does not attend."""
        group_of = group_of_layers(self.kv_cache_groups)
        return [None if cache is None else group_of[cache] for cache in self.cache_of_layers]

    def _set_layers(self, indices: Sequence[int]) -> None:
        super()._set_layers(indices)
        ropes, distinct = self.config.ropes, self.config.distinct_ropes
        placed = list[tuple[DecoderLayer, LayerPlace]]()
        caches, metadata, states = self.cache_of_layers, self.metadata_of_layers(), self.state_of_layers
        for index, cache, group, state in zip(indices, caches, metadata, states, strict=True):
            rotation = None if (rope := ropes[index]) is None else distinct.index(rope)
            placed.append((self._layers[index], LayerPlace(rotation, cache, group, state)))
        # On CPU this is ops/kernel_graph.py, which runs the layers natively.
        stack = self.make_stack(placed)
        self._layers_with_features = stack
        self._run_layers = self._factory.backend.captured(stack)


class LayersAndNorm:
    """Layers in sequence, then the norm; without a norm, other stages follow, which take all rows.

    Deepstack features of pictures are added behind the layers here, by torch, so these must not be captured then.
    """

    def __init__(
        self,
        layers: Sequence[tuple[DecoderLayer, LayerPlace]],
        norm: Callable[[torch.Tensor], torch.Tensor] | None,
        kept: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
    ) -> None:
        """``kept`` is ``OpsBackend.kept``."""
        self._layers = layers
        self._norm = norm
        self._kept = kept

    def __call__(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        media = context.media
        features = () if media is None or media.deepstack is None else media.deepstack
        last = len(self._layers) if self._norm is not None and len(features) < len(self._layers) else None
        taps, tapped = context.taps, dict[int, torch.Tensor]()
        for number, (layer, place) in enumerate(self._layers, 1):
            if taps is not None and number - 1 in taps.layers:
                tapped[number - 1] = self._kept(hidden)
            hidden = layer(hidden, context.of_layer(place, is_last=number == last))
            if media is not None and number <= len(features):
                hidden = hidden.index_add(0, media.rows, features[number - 1])
        if taps is not None:
            taps.set(tapped)
        if self._norm is None:
            return hidden
        if last is None and context.rows is not None:  # features came even behind the last layer
            hidden = hidden.index_select(0, context.rows)
        return self._norm(hidden)
