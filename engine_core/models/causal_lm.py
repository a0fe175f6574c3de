"""What the decoders written here have in common: embedding, layers, norm, head.

Symbols in shapes: T rows of a step, R rows that are wanted, H hidden size, padded as the backend wants it, V vocabulary
size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import Angles, AttentionMetadata
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.rotary import Rotary
from engine_core.layers.weights import Weights
from engine_core.models.language_model import LanguageModel, group_of_layers
from engine_core.models.model_config import ArchitectureConfig
from engine_core.models.per_layer_embeddings import PerLayerEmbeddings
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


class CausalLM(LanguageModel):
    """An embedding, layers that its family makes, a norm and a head."""

    model_type: ClassVar[str]
    """What config.json calls the family."""
    prefix: ClassVar[str] = "model"
    """What the names of all tensors but the head's begin with."""
    config: ArchitectureConfig
    rotaries: list[Rotary]
    """One for each of ``config.distinct_ropes``; set by ``load``."""

    @classmethod
    @abstractmethod
    def read_config(cls, config: PretrainedConfig) -> ArchitectureConfig:
        """What ``config`` describes. Raises ``CheckpointError``, ``UnsupportedModelError``."""

    def __init__(self, config: ArchitectureConfig, layers: PartFactory, max_model_len: int) -> None:
        """Make the parts, in the order in which they load."""
        super().__init__(config, layers, max_model_len)
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
        self._per_layer = self.make_per_layer_embeddings(layers)
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
    def make_layer(self, index: int, prefix: str, layers: PartFactory) -> DecoderLayer:
        """Layer ``index``, whose tensors' names begin with ``prefix``."""

    def make_norm(self, layers: PartFactory) -> Callable[[torch.Tensor], torch.Tensor]:
        """What is between the last layer and the head: a norm."""
        return layers.rms_norm(f"{self.prefix}.norm", Features(1, self.config.hidden_size), self.config.norm_eps)

    def make_per_layer_embeddings(self, layers: PartFactory) -> PerLayerEmbeddings | None:
        """What layers are given of each token besides hidden states: nothing."""
        return None

    def layer_kind(self, index: int) -> Hashable:
        config = self.config
        is_caching = config.cache_owners[index] == index
        return config.sliding_windows[index], config.ropes[index], config.cache_specs[index], is_caching

    def is_redundant(self, name: str) -> bool:
        """True for rotary frequencies, which older releases saved, and for a tied output projection."""
        return name.endswith(".rotary_emb.inv_freq") or self.repeats(name) is not None

    def repeats(self, name: str) -> str | None:
        tied = self.config.tie_word_embeddings and name == "lm_head.weight"
        return f"{self.prefix}.embed_tokens.weight" if tied else None

    def is_of_layer(self, name: str) -> bool:
        return name.startswith(f"{self.prefix}.layers.")

    def load(self, weights: Weights) -> None:
        """Compute the angles of all positions, and then load as ``LanguageModel`` does."""
        self.rotaries = [Rotary(rope, self._max_model_len, self._factory.device) for rope in self.config.distinct_ropes]
        super().load(weights)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: Sequence[AttentionMetadata],
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        angles = [rotary.angles(positions) for rotary in self.rotaries]
        per_layer = None if self._per_layer is None else self._per_layer.of_tokens(input_ids)
        return self._run_stack(self.embed(input_ids, positions), angles, kv_caches, metadata, rows, per_layer)

    def embed(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """What the first layer takes: [T, H] for ``input_ids`` at ``positions`` [T] int64."""
        return self.embed_tokens(input_ids)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits, config = self.lm_head.logits(hidden), self.config
        if config.logit_scale != 1.0:
            logits.mul_(config.logit_scale)
        if (cap := config.logit_softcap) is not None:
            logits.div_(cap).tanh_().mul_(cap)
        return logits

    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.config.logit_scale == 1.0 and self.config.logit_softcap is None:
            return self.lm_head.argmax(hidden)
        return super().argmax(hidden)  # what is rounded may be equal that was not

    def _set_layers(self, indices: Sequence[int]) -> None:
        super()._set_layers(indices)
        distinct, group_of = self.config.distinct_ropes, group_of_layers(self.kv_cache_groups)
        placed = []
        for index, cache in zip(indices, self.cache_of_layers, strict=True):
            rope = self.config.ropes[index]
            rotation = None if rope is None else distinct.index(rope)
            placed.append(PlacedLayer(index, self._layers[index], rotation, cache, group_of[cache]))
        self._run_stack = self._factory.captured(LayersAndNorm(placed, self._norm, self._per_layer))


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer, and what it takes of a step."""

    index: int
    """Among all layers of the model."""
    layer: DecoderLayer
    rotation: int | None
    """Which of the model's rotations."""
    cache: int
    group: int


class LayersAndNorm:
    """All layers, and the norm after them."""

    def __init__(
        self,
        layers: Sequence[PlacedLayer],
        norm: Callable[[torch.Tensor], torch.Tensor],
        embeddings: PerLayerEmbeddings | None,
    ) -> None:
        self._layers = layers
        self._norm = norm
        self._embeddings = embeddings

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: Sequence[Angles],
        kv_caches: list[torch.Tensor],
        metadata: Sequence[AttentionMetadata],
        rows: torch.Tensor | None,
        per_layer: torch.Tensor | None,
    ) -> torch.Tensor:
        embeddings, given = self._embeddings, None
        if embeddings is not None and per_layer is not None:
            given = embeddings.of_layers(per_layer, hidden)
        for each in self._layers:
            own = None if each.rotation is None else angles[each.rotation]
            last = each is self._layers[-1]  # after its attention, the other rows are not needed
            wanted = rows if last else None
            hidden = each.layer(hidden, own, kv_caches[each.cache], metadata[each.group], wanted)
            if embeddings is not None and given is not None:
                hidden = embeddings.add(each.index, hidden, given, wanted)
        return self._norm(hidden)
