"""The interface of a model as workers see it.

Symbols in shapes: T rows of a step, R rows that sample, H hidden size, V vocabulary size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import torch

from engine_core.attention.base import AttentionMetadata, KVCacheSpec


class CausalLM(ABC):
    """A decoder with its weights loaded. It keeps no state between calls; ``forward`` changes only the KV cache.

    On CPU, a row's result has the same bits whatever else is in the step and however many threads compute it.
    """

    vocab_size: int
    hidden_size: int

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Memory of the weights as they are kept, packed and padded."""

    @abstractmethod
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Final hidden states [R, H] (after the last norm) of the ``rows`` [R] int64 of a step, or [T, H] of all.

        The step has ``input_ids`` [T] int64 at ``positions`` [T] int64. ``kv_caches`` has one cache per layer, as the
        attention backend allocated them.
        """

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of hidden states [R, H]; pass only the rows that are sampled."""

    @abstractmethod
    def argmax(self, hidden: torch.Tensor) -> torch.Tensor:
        """Ids [R] int64 of the tokens with the greatest logits, the lowest id of equals, for hidden states [R, H]."""

    @abstractmethod
    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """What the attention backend has to allocate for this model."""

    @abstractmethod
    def first_layers(self, count: int) -> Self:
        """The same model cut to its first ``count`` layers, sharing weights.

        All layers need equal scratch memory, so profiling one, with embedding, norm and head, tells the peak of all.
        The ``kv_cache_spec`` of the result has ``count`` layers.
        """
