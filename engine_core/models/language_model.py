"""A decoder-only language model as workers see it.

Symbols in shapes: T rows of a step, R wanted rows, H hidden size with the backend's padding, V vocabulary size.
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
from engine_core.errors import UnsupportedModelError
from engine_core.forward_context import ForwardContext, IntermediateTensors
from engine_core.kv_cache_interface import KVCacheGroup
from engine_core.layers.lora import LoRALayers
from engine_core.layers.part import Part
from engine_core.layers.part_factory import PartFactory
from engine_core.media import VisionShape
from engine_core.models.model_config import ModelShape
from engine_core.models.vision_model import VisionModel
from engine_core.ops.base import Greatest, greatest_of
from engine_core.pooling.config import PoolerConfig, PoolingType
from engine_core.pooling.pooler import Head, Pooler
from engine_core.quantization.base import QuantizationConfig
from engine_core.states.base import StateCacheSpec
from engine_core.weights.source import Weights


class LanguageModel(ABC):
    """Consists of parts whose weights ``load`` fills in; keeps nothing between calls but the caches.

    With batch-invariant backends, a row's result should have the same bits whatever else is in the step; a self-test
    has to confirm it.
    """

    config: ModelShape
    reads_per_layer_config: ClassVar[bool] = False
    """Whether ``read_config`` supports ``per_layer_config``; other models refuse it."""
    gives_taps: ClassVar[bool] = False
    """Whether ``forward`` fills ``ForwardContext.taps``."""
    default_pooling: ClassVar[PoolingType] = PoolingType.LAST
    """Of which hidden states results are made, where a checkpoint does not say."""

    @classmethod  # noqa: B027
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        """Refuse fields of ``raw``, the unprocessed config.json, that transformers would ignore or report unclearly.

        Raises ``CheckpointError``, ``UnsupportedModelError``.
        """

    @classmethod
    @abstractmethod
    def read_config(cls, config: PretrainedConfig) -> ModelShape:
        """Read ``config``. Raises ``CheckpointError``, ``UnsupportedModelError``."""

    def __init__(self, config: ModelShape, parts: PartFactory, max_model_len: int) -> None:
        """Make the parts by ``parts``, in loading order."""
        self.config = config
        self._factory = parts
        self._max_model_len = max_model_len
        self.vision: VisionModel | None = None
        """Encodes pictures; None: the model sees none, or another stage encodes them."""
        self.vision_parts: tuple[Part, ...] = ()
        """Those of ``parts`` that belong to it."""
        self.pooler: Pooler | None = None
        """Makes results of hidden states; None: the model generates tokens, or this is not its last stage."""
        self.stage_layers = config.stage_layers(parts.rank.pp_size)[parts.rank.pp]
        """This stage's layers: all, if it is the only stage."""

    def add_vision(
        self,
        vision: type[VisionModel],
        config: PretrainedConfig,
        preprocessor: Mapping[str, Any],
        shape: VisionShape,
        quantization: QuantizationConfig | None,
    ) -> None:
        """Make the vision model's parts, behind the model's own; call before ``load``."""
        own = len(self._factory.parts)
        self.vision = vision(config, preprocessor, shape, self._factory.replicated(quantization))
        self.vision_parts = tuple(self._factory.parts[own:])

    def add_pooler(self, config: PoolerConfig, architecture: str) -> None:
        """Make the parts that pool, behind all others; call before ``load``.

        ``architecture``: the class in the checkpoint's configuration, which may have a classifier.
        """
        if not self.has_head:
            return
        parts, classifier = self._factory.replicated(None), None
        if config.classifies and config.tokens is None:
            per_token = all(task.per_token for task in config.facts.tasks)
            classifier = self.make_classifier(parts, architecture, len(config.facts.labels), per_token=per_token)
        self.pooler = Pooler(config, parts, self.vocab_size, self.embedding_size, classifier)

    def make_classifier(self, parts: PartFactory, architecture: str, num_labels: int, *, per_token: bool) -> Head:
        """What makes numbers of labels of pooled hidden states, or of each (``per_token``); without activation.

        Raises ``UnsupportedModelError``.
        """
        raise UnsupportedModelError(f"{architecture} has a classifier that is not supported")

    @classmethod
    def pooling_of(cls, raw: Mapping[str, Any], architecture: str) -> PoolingType:
        """Of which hidden states the class ``architecture`` makes results, as ``raw``, its config.json, says."""
        return cls.default_pooling

    @classmethod
    def head_tensor(cls, config: ModelShape) -> str:
        """The name of the weight [V, H] of the head for tokens; empty: it has none."""
        return ""

    @property
    def lora(self) -> LoRALayers | None:
        """What adapters may add to; None: nothing."""
        return self._factory.lora

    @property
    def dtype(self) -> torch.dtype:
        """The type of hidden states and of weights that are not quantized."""
        return self._factory.dtype

    @property
    def is_first_stage(self) -> bool:
        """Whether it embeds tokens."""
        return self._factory.rank.is_first_stage

    @property
    def has_head(self) -> bool:
        """Whether its layers are the last ones, followed by norm and head."""
        return self._factory.rank.is_last_stage

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def embedding_size(self) -> int:
        """Width of embeddings and of the head's input, without padding."""
        return self.config.hidden_size

    @property
    def numerics(self) -> tuple[str, ...]:
        """What determines a result's bits besides the backends of layers and attention."""
        return ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """In loading order."""
        return tuple(self._factory.parts)

    @property
    def layer_parts(self) -> tuple[Part, ...]:
        """The layers' parts that have tensors."""
        return tuple(part for part in self.parts if any(self.is_of_layer(name) for name in part.tensors()))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors that the parts take from a checkpoint, by name."""
        return {name: shape for part in self._factory.parts for name, shape in part.tensors().items()}

    @classmethod
    def renamed(cls, name: str) -> str:
        """The name in ``tensors`` for a checkpoint's ``name``."""
        return name

    @abstractmethod
    def is_redundant(self, name: str) -> bool:
        """Whether a tensor may be present but unused: it only repeats the configuration or another tensor."""

    def repeats(self, name: str) -> str | None:
        """The tensor that a redundant one must equal, if any."""
        return None

    @abstractmethod
    def is_of_layer(self, name: str) -> bool:
        """Whether a tensor belongs to one of the layers."""

    def load(self, weights: Weights) -> None:
        """Load the parts' weights, in the order in which the parts were made."""
        for part in self._factory.parts:
            part.load(weights)

    @property
    def is_part(self) -> bool:
        """Whether other ranks have the rest of the model."""
        return self._factory.rank.world_size > 1

    @property
    def num_weights(self) -> int:
        """Count of numbers that it takes from the checkpoint."""
        return sum(part.num_weights for part in self._factory.parts)

    @property
    def expected_weight_bytes(self) -> int:
        """Bytes of the weights, known before loading, without padding."""
        return sum(part.weight_bytes(self._factory.dtype.itemsize) for part in self._factory.parts)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the loaded weights, packed and padded."""
        return sum(part.nbytes for part in self._factory.parts)

    @abstractmethod
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Final hidden states (after the last norm) of a step with ``input_ids`` [T] int64 at ``positions`` [T] int64:
        [R, H] for the wanted rows, or [T, H] for all.
        """

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 for hidden states [R, H]; pass only rows to sample."""

    @property
    def masks_argmax(self) -> bool:
        """Whether ``greatest`` supports ``allowed``."""
        return False

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """The greatest logits for hidden states [R, H], and their tokens; ties go to the lowest id.

        ``allowed`` [R, ⌈V / 32⌉] int32, if given, is a bit mask of tokens (bit i of word w: token 32 · w + i).
        """
        assert allowed is None
        return greatest_of(self.compute_logits(hidden))

    @property
    def kv_cache_groups(self) -> tuple[KVCacheGroup, ...]:
        """Groups of layers that share a block table: the whole model's groups, restricted to the layers here."""
        if len(self._layer_indices) < len(self.stage_layers):
            return self.config.groups_of(self._caching_layers)  # cut down
        layers, places = self.config.caching_layers, {index: at for at, index in enumerate(self._caching_layers)}
        return tuple(
            replace(group, layers=tuple(places[layers[at]] for at in group.layers if layers[at] in places))
            for group in self.config.groups_of(layers)
        )

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """The cache that the attention backend must allocate for this model."""
        specs, pad = self.config.rank_cache_specs, self._factory.backend.padded
        return KVCacheSpec(
            tuple(spec.padded(pad) for index in self._caching_layers if (spec := specs[index]) is not None),
            block_size,
            self._factory.dtype,
            self.kv_cache_groups,
            self._factory.attention_backend.cache_dtype,
            takes_turns=self.config.attends_both_ways,
        )

    @property
    def cache_of_layers(self) -> tuple[int | None, ...]:
        """For each layer, the index of its cache in ``kv_cache_spec``; None: it does not attend."""
        places = {layer: place for place, layer in enumerate(self._caching_layers)}
        return tuple(places.get(owner) for owner in self._owners)

    @property
    def state_cache_spec(self) -> StateCacheSpec | None:
        """The states that must be allocated for this model's layers; None: none keeps one."""
        specs, pad = self.config.rank_state_specs, self._factory.backend.padded
        layers = tuple(spec.padded(pad) for index in self._layer_indices if (spec := specs[index]) is not None)
        return StateCacheSpec(layers, self._factory.dtype) if layers else None

    @property
    def state_of_layers(self) -> tuple[int | None, ...]:
        """For each layer, the index of its state in ``state_cache_spec``; None: it keeps none."""
        specs = self.config.state_specs
        keeping = [index for index in self._layer_indices if specs[index] is not None]
        places = {layer: place for place, layer in enumerate(keeping)}
        return tuple(places.get(index) for index in self._layer_indices)

    @abstractmethod
    def layer_kind(self, index: int) -> Hashable:
        """Equal for layers with equal memory, time and kernels."""

    def layers_by_kind(self) -> list[list[int]]:
        """The layers' indices, grouped by kind."""
        kinds: dict[Hashable, list[int]] = {}
        for index in self._layer_indices:
            kinds.setdefault(self.layer_kind(index), []).append(index)
        return list(kinds.values())

    def one_layer_of_each_kind(self) -> Self:
        """A copy with only the first layer of each kind, sharing weights: for profiling and self-tests.

        The layers whose caches they attend over remain, too.
        """
        first = [indices[0] for indices in self.layers_by_kind()]
        return self.with_layers(sorted({*first, *(self.config.cache_owners[index] for index in first)}))

    def with_layers(self, indices: Sequence[int]) -> Self:
        """A copy with only the layers ``indices``, sharing weights; its specs of caches and states count only them.

        A layer that attends over a missing layer's cache gets one that nothing writes: good only for measuring.
        """
        model = copy.copy(self)
        model._set_layers(indices)
        return model

    def _set_layers(self, indices: Sequence[int]) -> None:
        """Run only these layers."""
        self._layer_indices = tuple(indices)
        owners = self.config.cache_owners
        self._owners = tuple(owners[index] if owners[index] in indices else index for index in indices)
        specs = self.config.cache_specs
        self._caching_layers = tuple(owner for owner in sorted(set(self._owners)) if specs[owner] is not None)


class StagedModel(LanguageModel):
    """A model that can be a pipeline stage of consecutive layers."""

    @abstractmethod
    def first_input(
        self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext | None = None
    ) -> IntermediateTensors:
        """The input of this stage's first layer for ``input_ids`` [T] int64 at ``positions`` [T] int64.

        Embeddings of the ``context``'s media replace those of the tokens in their rows.
        In a later stage it is made up from the ids alone, to measure and test the stage by itself.
        """

    @abstractmethod
    def forward_stage(
        self, given: IntermediateTensors, positions: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        """Like ``forward``, from the input ``given`` to this stage's first layer.

        [T, H] without the last norm if other stages follow.
        """

    @abstractmethod
    def received_shapes(self, rows: int) -> list[tuple[int, ...]]:
        """Shapes of the ``IntermediateTensors`` that the previous stage sends for a step of ``rows``."""

    @abstractmethod
    def for_next_stage(self, given: IntermediateTensors, hidden: torch.Tensor) -> IntermediateTensors:
        """The next stage's input, from this stage's input ``given`` and its output ``hidden``."""


def group_of_layers(groups: Sequence[KVCacheGroup]) -> list[int]:
    """The group of each layer."""
    group_of = {layer: number for number, group in enumerate(groups) for layer in group.layers}
    return [group_of[layer] for layer in range(len(group_of))]
