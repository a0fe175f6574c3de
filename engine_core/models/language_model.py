"""A decoder-only language model as workers see it.

Symbols in shapes: T rows of a step, R rows that are wanted, H hidden size, padded as the backend wants it, V vocabulary
size.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import KVCacheSpec
from engine_core.forward_context import ForwardContext, IntermediateTensors
from engine_core.kv_cache_interface import KVCacheGroup
from engine_core.layers.part import Part
from engine_core.layers.part_factory import PartFactory
from engine_core.models.model_config import ModelShape
from engine_core.ops.base import Greatest, greatest_of
from engine_core.weights.source import Weights


class LanguageModel(ABC):
    """Made of parts without weights, which ``load`` fills; keeps no state between calls but the KV cache.

    With batch-invariant backends, a row's result is meant to have the same bits whatever else is in the step; a
    self-test has to confirm it.
    """

    config: ModelShape
    reads_per_layer_config: ClassVar[bool] = False
    """Whether ``read_config`` knows ``per_layer_config``; for the others it is refused."""

    @classmethod  # noqa: B027
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        """Refuse what transformers would pass over, or stumble over without saying what it is, in ``raw``, config.json
        as it is.

        Raises ``CheckpointError``, ``UnsupportedModelError``.
        """

    @classmethod
    @abstractmethod
    def read_config(cls, config: PretrainedConfig) -> ModelShape:
        """What ``config`` describes. Raises ``CheckpointError``, ``UnsupportedModelError``."""

    def __init__(self, config: ModelShape, parts: PartFactory, max_model_len: int) -> None:
        """Make the parts by ``parts``, in the order in which they load."""
        self.config = config
        self._factory = parts
        self._max_model_len = max_model_len
        self.stage_layers = config.stage_layers(parts.rank.pp_size)[parts.rank.pp]
        """The layers that there are here: all, unless the model is one of several stages."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights that are not quantized, and of hidden states."""
        return self._factory.dtype

    @property
    def is_first_stage(self) -> bool:
        """Whether it embeds tokens."""
        return self._factory.rank.is_first_stage

    @property
    def has_head(self) -> bool:
        """Whether its layers are the last ones, and the norm and the head follow."""
        return self._factory.rank.is_last_stage

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""
        return self.config.vocab_size

    @property
    def embedding_size(self) -> int:
        """Width of embeddings and of what the head takes, without padding."""
        return self.config.hidden_size

    @property
    def numerics(self) -> tuple[str, ...]:
        """What decides a result's bits besides the backends of layers and attention."""
        return ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All, in the order in which they load."""
        return tuple(self._factory.parts)

    @property
    def layer_parts(self) -> tuple[Part, ...]:
        """The parts of layers that have tensors."""
        return tuple(part for part in self.parts if any(self.is_of_layer(name) for name in part.tensors()))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that the parts take from a checkpoint."""
        return {name: shape for part in self._factory.parts for name, shape in part.tensors().items()}

    def renamed(self, name: str) -> str:
        """What ``tensors`` calls a tensor that a checkpoint calls ``name``."""
        return name

    @abstractmethod
    def is_redundant(self, name: str) -> bool:
        """Whether a tensor may be there without being used: it only repeats the configuration or another tensor."""

    def repeats(self, name: str) -> str | None:
        """The tensor that a redundant one must equal, if there is one."""
        return None

    @abstractmethod
    def is_of_layer(self, name: str) -> bool:
        """Whether a tensor belongs to one of the layers."""

    def load(self, weights: Weights) -> None:
        """Give each part its weights, one after the other, in the order in which they were made."""
        for part in self._factory.parts:
            part.load(weights)

    @property
    def is_part(self) -> bool:
        """Whether other ranks have further parts of the model."""
        return self._factory.rank.world_size > 1

    @property
    def num_weights(self) -> int:
        """Numbers in the checkpoint that it takes."""
        return sum(part.num_weights for part in self._factory.parts)

    @property
    def expected_weight_bytes(self) -> int:
        """Bytes that the weights will take, before any is loaded; what padding adds is left out."""
        return sum(part.weight_bytes(self._factory.dtype.itemsize) for part in self._factory.parts)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as they are kept, packed and padded."""
        return sum(part.nbytes for part in self._factory.parts)

    @abstractmethod
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Final hidden states (after the last norm) of a step with ``input_ids`` [T] int64 at ``positions`` [T] int64:
        [R, H] of the rows that are wanted, or [T, H] of all.
        """

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of hidden states [R, H]; pass only the rows that are sampled."""

    @property
    def masks_argmax(self) -> bool:
        """Whether ``greatest`` takes ``allowed``."""
        return False

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """The tokens with the greatest logits, the lowest id of equals, for hidden states [R, H]; and these logits.

        Tokens are of those whose bits are set in ``allowed`` [R, ⌈V / 32⌉] int32 (bit i of word w: token 32 · w + i),
        if given.
        """
        assert allowed is None
        return greatest_of(self.compute_logits(hidden))

    @property
    def kv_cache_groups(self) -> tuple[KVCacheGroup, ...]:
        """The groups of layers that have a block table each; those of the whole model, but with the layers here."""
        if len(self._layer_indices) < len(self.stage_layers):
            return self.config.groups_of(self._caching_layers)  # cut down
        layers, places = self.config.caching_layers, {index: at for at, index in enumerate(self._caching_layers)}
        return tuple(
            replace(group, layers=tuple(places[layers[at]] for at in group.layers if layers[at] in places))
            for group in self.config.groups_of(layers)
        )

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """What the attention backend has to allocate for this model."""
        specs = self.config.rank_cache_specs
        return KVCacheSpec(
            tuple(specs[index].padded(self._factory.backend.padded) for index in self._caching_layers),
            block_size,
            self._factory.dtype,
            self.kv_cache_groups,
            self._factory.attention_backend.cache_dtype,
        )

    @property
    def cache_of_layers(self) -> tuple[int, ...]:
        """For each layer, which of the caches for ``kv_cache_spec`` it attends over."""
        return tuple(self._caching_layers.index(owner) for owner in self._owners)

    @abstractmethod
    def layer_kind(self, index: int) -> Hashable:
        """Equal for layers that take equal memory and time and compute by the same kernels."""

    def layers_by_kind(self) -> list[list[int]]:
        """The indices of the layers of each kind."""
        kinds: dict[Hashable, list[int]] = {}
        for index in self._layer_indices:
            kinds.setdefault(self.layer_kind(index), []).append(index)
        return list(kinds.values())

    def one_layer_of_each_kind(self) -> Self:
        """The same model cut down to the first layer of each kind, sharing weights: for profiling and self-tests.

        Those whose caches they attend over are left in, too.
        """
        first = [indices[0] for indices in self.layers_by_kind()]
        return self.with_layers(sorted({*first, *(self.config.cache_owners[index] for index in first)}))

    def with_layers(self, indices: Sequence[int]) -> Self:
        """The same model with only the layers ``indices``, sharing weights; its ``kv_cache_spec`` counts only them.

        A layer that attends over what a missing one writes has a cache that nothing writes: good for measuring alone.
        """
        model = copy.copy(self)
        model._set_layers(indices)
        return model

    def _set_layers(self, indices: Sequence[int]) -> None:
        """Run only these of all layers."""
        self._layer_indices = tuple(indices)
        owners = self.config.cache_owners
        self._owners = tuple(owners[index] if owners[index] in indices else index for index in indices)
        self._caching_layers = tuple(sorted(set(self._owners)))


class StagedModel(LanguageModel):
    """A model that can be one of several stages of consecutive layers."""

    @abstractmethod
    def first_input(self, input_ids: torch.Tensor, positions: torch.Tensor) -> IntermediateTensors:
        """What the first layer here takes of ``input_ids`` [T] int64 at ``positions`` [T] int64.

        In a stage that is not the first it is made up, of the ids alone: to measure and to test the stage by itself.
        """

    @abstractmethod
    def forward_stage(
        self, given: IntermediateTensors, positions: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        """What ``forward`` makes of tokens, of what the first layer here is ``given`` of them.

        [T, H] without the last norm where other stages follow.
        """

    @abstractmethod
    def received_shapes(self, rows: int) -> list[tuple[int, ...]]:
        """Shapes of the ``IntermediateTensors`` that the stage before sends for a step of ``rows``."""

    @abstractmethod
    def for_next_stage(self, given: IntermediateTensors, hidden: torch.Tensor) -> IntermediateTensors:
        """What the next stage takes, of what this one was ``given`` and the ``hidden`` states it has made of that."""


def group_of_layers(groups: Sequence[KVCacheGroup]) -> list[int]:
    """The group of each layer."""
    group_of = {layer: number for number, group in enumerate(groups) for layer in group.layers}
    return [group_of[layer] for layer in range(len(group_of))]
