"""A decoder-only language model as workers see it, and what all of them have: embedding, layers, norm, head.

Symbols in shapes: T rows of a step, R rows that are wanted, H hidden size, padded as the backend wants it, V vocabulary
size.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import Angles, AttentionMetadata, KVCacheSpec
from engine_core.kv_cache_interface import KVCacheGroup, group_layers
from engine_core.layers.base import first_greatest
from engine_core.layers.factory import LayerFactory
from engine_core.layers.parts import Part
from engine_core.layers.rotary import Rotary
from engine_core.layers.weights import Weights
from engine_core.models.architecture import ArchitectureConfig
from engine_core.quantization.base import Features


class DecoderLayer(Protocol):
    """Attention and feed-forward, each added to what went in."""

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: Angles | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] of the ``rows`` [R] of ``hidden`` [T, H], or [T, H] of all; writes keys and values to ``kv_cache``."""


class CausalLM(ABC):
    """Made of parts without weights, which ``load`` fills; keeps no state between calls but the KV cache.

    With batch-invariant backends, a row's result has the same bits whatever else is in the step.
    """

    model_type: ClassVar[str]
    """What config.json calls the family."""
    prefix: ClassVar[str] = "model"
    """With which the names of tensors begin, but for the head's."""
    rotaries: list[Rotary]
    """Those of ``config.distinct_ropes``; set by ``load``."""

    @classmethod  # noqa: B027
    def check_raw_config(cls, raw: Mapping[str, Any]) -> None:
        """Refuse what transformers would stumble over in ``raw``, config.json as it is, without saying what it is.

        Raises ``CheckpointError``.
        """

    @classmethod
    @abstractmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        """What ``config`` describes. Raises ``CheckpointError``, ``UnsupportedModelError``."""

    def __init__(self, config: ArchitectureConfig, layers: LayerFactory, max_model_len: int) -> None:
        """Make the parts, in the order in which they load."""
        self.config = config
        self.vocab_size = config.vocab_size
        self._factory = layers
        self.lm_head = layers.parallel_lm_head(
            f"{self.prefix}.embed_tokens" if config.tie_word_embeddings else "lm_head",
            config.vocab_size,
            self.embedding_size,
        )
        self.embed_tokens = layers.vocab_parallel_embedding(
            f"{self.prefix}.embed_tokens",
            config.vocab_size,
            self.embedding_size,
            self.lm_head if config.tie_word_embeddings else None,
            config.embedding_scale,
        )
        self._max_model_len = max_model_len
        self._layers = [
            self.make_layer(index, f"{self.prefix}.layers.{index}", layers) for index in range(config.num_layers)
        ]
        self._norm = self.make_norm(layers)
        self._set_layers(range(config.num_layers))

    @property
    def embedding_size(self) -> int:
        """Width of embeddings and of what the head takes, without padding."""
        return self.config.hidden_size

    @abstractmethod
    def make_layer(self, index: int, prefix: str, layers: LayerFactory) -> DecoderLayer:
        """Layer ``index``, whose tensors' names begin with ``prefix``."""

    def make_norm(self, layers: LayerFactory) -> Callable[[torch.Tensor], torch.Tensor]:
        """What is between the last layer and the head: a norm."""
        return layers.rms_norm(f"{self.prefix}.norm", Features(1, self.config.hidden_size), self.config.norm_eps)

    def layer_kind(self, index: int) -> Hashable:
        """Equal for layers that take equal memory and time and compute by the same kernels."""
        return self.config.sliding_windows[index], self.config.ropes[index], self.config.cache_specs[index]

    @property
    def parts(self) -> tuple[Part, ...]:
        """All, in the order in which they load."""
        return tuple(self._factory.parts)

    @property
    def layer_parts(self) -> tuple[Part, ...]:
        """Those of the layers that have tensors."""
        return tuple(part for part in self.parts if any(".layers." in name for name in part.tensors()))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that the parts take from a checkpoint."""
        return {name: shape for part in self._factory.parts for name, shape in part.tensors().items()}

    def renamed(self, name: str) -> str:
        """What ``tensors`` calls a tensor that a checkpoint calls ``name``."""
        return name

    def is_redundant(self, name: str) -> bool:
        """Whether a tensor may be there without being used: it only repeats the configuration or another tensor.

        These are rotary frequencies, which older releases saved, and the output projection where embeddings are tied.
        """
        return name.endswith(".rotary_emb.inv_freq") or (self.config.tie_word_embeddings and name == "lm_head.weight")

    def load(self, weights: Weights) -> None:
        """Give each part its weights, one after the other, and compute the angles of all positions."""
        self.rotaries = [Rotary(rope, self._max_model_len, self._factory.device) for rope in self.config.distinct_ropes]
        for part in self._factory.parts:
            part.load(weights)

    @property
    def expected_weight_bytes(self) -> int:
        """Bytes that the weights will take, before any is loaded; what padding adds is left out."""
        return sum(part.weight_bytes(self._factory.dtype.itemsize) for part in self._factory.parts)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as they are kept, packed and padded."""
        return sum(part.nbytes for part in self._factory.parts)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: Sequence[AttentionMetadata],
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Final hidden states [R, H] (after the last norm) of the ``rows`` [R] int64 of a step, or [T, H] of all.

        The step has ``input_ids`` [T] int64 at ``positions`` [T] int64. ``kv_caches`` are what the attention backend
        allocated for ``kv_cache_spec``, ``metadata`` has one entry for each of ``kv_cache_groups``.
        """
        angles = [rotary.angles(positions) for rotary in self.rotaries]
        return self._run_stack(self.embed(input_ids, positions), angles, kv_caches, metadata, rows)

    def embed(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """What the first layer takes: [T, H] for ``input_ids`` at ``positions`` [T] int64."""
        return self.embed_tokens(input_ids)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of hidden states [R, H]; pass only the rows that are sampled."""
        logits, config = self.lm_head.logits(hidden), self.config
        if config.logit_scale != 1.0:
            logits.mul_(config.logit_scale)
        if (cap := config.logit_softcap) is not None:
            logits.div_(cap).tanh_().mul_(cap)
        return logits

    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        """Ids [R] int64 of the tokens with the greatest logits, the lowest id of equals, for hidden states [R, H]."""
        if self.config.logit_scale == 1.0 and self.config.logit_softcap is None:
            return self.lm_head.argmax(hidden)
        return first_greatest(self.compute_logits(hidden))  # what is rounded may be equal that was not

    @property
    def kv_cache_groups(self) -> tuple[KVCacheGroup, ...]:
        """The groups of layers that have a block table each."""
        windows, specs = self.config.sliding_windows, self.config.cache_specs
        return group_layers(
            [windows[index] for index in self._layer_indices], [specs[index] for index in self._layer_indices]
        )

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """What the attention backend has to allocate for this model."""
        return KVCacheSpec(
            tuple(self.config.cache_specs[index].padded(self._factory.backend.padded) for index in self._layer_indices),
            block_size,
            self._factory.dtype,
            self.kv_cache_groups,
        )

    def layers_by_kind(self) -> list[list[int]]:
        """The indices of the layers of each kind."""
        kinds: dict[Hashable, list[int]] = {}
        for index in self._layer_indices:
            kinds.setdefault(self.layer_kind(index), []).append(index)
        return list(kinds.values())

    def one_layer_of_each_kind(self) -> Self:
        """The same model cut down to the first layer of each kind, sharing weights: for profiling and self-tests."""
        return self.with_layers([indices[0] for indices in self.layers_by_kind()])

    def with_layers(self, indices: Sequence[int]) -> Self:
        """The same model with only the layers ``indices``, sharing weights; its ``kv_cache_spec`` counts only them."""
        model = copy.copy(self)
        model._set_layers(indices)
        return model

    def _set_layers(self, indices: Sequence[int]) -> None:
        """Run only these of all layers."""
        self._layer_indices = tuple(indices)
        layers, distinct = [self._layers[index] for index in indices], self.config.distinct_ropes
        ropes = [self.config.ropes[index] for index in indices]
        rotations = [None if rope is None else distinct.index(rope) for rope in ropes]
        self._run_stack = self._factory.captured(LayersAndNorm(layers, rotations, self.kv_cache_groups, self._norm))


class LayersAndNorm:
    """All layers, and the norm after them."""

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        rotations: Sequence[int | None],
        groups: Sequence[KVCacheGroup],
        norm: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """``rotations``: which of the model's rotations each layer has, if any."""
        self._layers = layers
        self._rotations = rotations
        self._norm = norm
        group_of = {layer: number for number, group in enumerate(groups) for layer in group.layers}
        self._groups = [group_of[layer] for layer in range(len(layers))]
        """The group of each layer."""

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: Sequence[Angles],
        kv_caches: list[torch.Tensor],
        metadata: Sequence[AttentionMetadata],
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] of the ``rows`` [R] of ``hidden`` [T, H], or [T, H] of all."""
        for index, layer in enumerate(self._layers):
            rotation, group = self._rotations[index], self._groups[index]
            own = None if rotation is None else angles[rotation]
            last = index == len(self._layers) - 1  # after its attention, no other row needs those that nobody wants
            hidden = layer(hidden, own, kv_caches[index], metadata[group], rows if last else None)
        return self._norm(hidden)
