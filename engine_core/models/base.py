"""A decoder-only language model as workers see it, and what all of them have: embedding, layers, norm, head.

Symbols in shapes: T rows of a step, R rows that are wanted, H hidden size, padded as the backend wants it, V vocabulary
size.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import ClassVar, Protocol, Self

import torch
from transformers import PretrainedConfig

from engine_core.attention.base import AttentionMetadata, KVCacheSpec
from engine_core.kv_cache_interface import KVCacheGroup, group_layers
from engine_core.layers.factory import LayerFactory
from engine_core.layers.parts import RMSNorm
from engine_core.layers.rotary import Rotary
from engine_core.layers.weights import Weights
from engine_core.models.architecture import ArchitectureConfig
from engine_core.quantization.base import Features


class DecoderLayer(Protocol):
    """Attention and feed-forward, each added to what went in."""

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
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
    rotary: Rotary
    """Set by ``load``."""

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
            "model.embed_tokens" if config.tie_word_embeddings else "lm_head", config.vocab_size, config.hidden_size
        )
        self.embed_tokens = layers.vocab_parallel_embedding(
            "model.embed_tokens",
            config.vocab_size,
            config.hidden_size,
            self.lm_head if config.tie_word_embeddings else None,
        )
        self._max_model_len = max_model_len
        decoder_layers = [self.make_layer(index, f"model.layers.{index}", layers) for index in range(config.num_layers)]
        norm = layers.rms_norm("model.norm", Features(1, config.hidden_size), config.rms_norm_eps)
        self._layer_indices = tuple(range(config.num_layers))
        self._set_stack(LayersAndNorm(decoder_layers, norm, self.kv_cache_groups))

    @abstractmethod
    def make_layer(self, index: int, prefix: str, layers: LayerFactory) -> DecoderLayer:
        """Layer ``index``, whose tensors' names begin with ``prefix``."""

    def layer_kind(self, index: int) -> Hashable:
        """Equal for layers that take equal memory and time and compute by the same kernels."""
        return self.config.sliding_windows[index]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that the parts take from a checkpoint."""
        return {name: shape for part in self._factory.parts for name, shape in part.tensors().items()}

    def is_redundant(self, name: str) -> bool:
        """Whether a tensor may be there without being used: it only repeats the configuration or another tensor.

        These are rotary frequencies, which older releases saved, and the output projection where embeddings are tied.
        """
        return name.endswith(".rotary_emb.inv_freq") or (self.config.tie_word_embeddings and name == "lm_head.weight")

    def load(self, weights: Weights) -> None:
        """Give each part its weights, one after the other, and compute the angles of all positions."""
        self.rotary = Rotary(self.config.rope, self.config.head_dim, self._max_model_len, self._factory.device)
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
        cos, sin = self.rotary.angles(positions)
        return self._run_stack(self.embed_tokens(input_ids), cos, sin, kv_caches, metadata, rows)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of hidden states [R, H]; pass only the rows that are sampled."""
        return self.lm_head.logits(hidden)

    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        """Ids [R] int64 of the tokens with the greatest logits, the lowest id of equals, for hidden states [R, H]."""
        return self.lm_head.argmax(hidden)

    @property
    def kv_cache_groups(self) -> tuple[KVCacheGroup, ...]:
        """The groups of layers that have a block table each."""
        return group_layers([self.config.sliding_windows[index] for index in self._layer_indices])

    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """What the attention backend has to allocate for this model."""
        return KVCacheSpec(
            num_layers=max(len(group.layers) for group in self.kv_cache_groups),
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self._factory.backend.padded(self.config.head_dim),
            block_size=block_size,
            dtype=self._factory.dtype,
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
        model._layer_indices = tuple(indices)
        layers = [self._stack.layers[index] for index in indices]
        model._set_stack(LayersAndNorm(layers, self._stack.norm, model.kv_cache_groups))
        return model

    def _set_stack(self, stack: LayersAndNorm) -> None:
        self._stack = stack
        self._run_stack = self._factory.captured(stack)


class LayersAndNorm:
    """All layers, and the norm after them."""

    def __init__(self, layers: Sequence[DecoderLayer], norm: RMSNorm, groups: Sequence[KVCacheGroup]) -> None:
        self.layers = layers
        self.norm = norm
        places = {
            layer: (number, place) for number, group in enumerate(groups) for place, layer in enumerate(group.layers)
        }
        self._places = [places[layer] for layer in range(len(layers))]
        """The group of each layer, and which of the group's caches it has."""

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: Sequence[AttentionMetadata],
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[R, H] of the ``rows`` [R] of ``hidden`` [T, H], or [T, H] of all."""
        for number, (layer, (group, place)) in enumerate(zip(self.layers, self._places, strict=True), 1):
            last = number == len(self.layers)  # after its attention, no other row needs those that nobody wants
            hidden = layer(hidden, cos, sin, kv_caches[place], metadata[group], rows if last else None)
        return self.norm(hidden)
