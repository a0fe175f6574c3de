"""The interface of a model as workers see it. Symbols in shapes: T rows of a step, R rows that sample, H hidden size,
V vocabulary size."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from engine_core.attention.base import AttentionMetadata, KVCacheSpec


class CausalLM(ABC):
    """A decoder with its weights loaded. It keeps no state between calls; ``forward`` changes only the KV cache.

    A row's result has the same bits whatever else is in the step (on CPU).
    """

    vocab_size: int
    hidden_size: int
    weight_bytes: int
    """Memory the loaded weights take, as packed."""

    @abstractmethod
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Final hidden states [T, H] (after the last norm) of ``input_ids`` [T] int64 at ``positions`` [T] int64.

        ``kv_caches`` has one cache per layer, as the attention backend allocated them.
        """

    @abstractmethod
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of hidden states [R, H]; pass only the rows that are sampled."""

    @abstractmethod
    def kv_cache_spec(self, block_size: int) -> KVCacheSpec:
        """What the attention backend has to allocate for this model."""

    @abstractmethod
    def first_layers(self, count: int) -> CausalLM:
        """The same model cut to its first ``count`` layers, sharing weights: all layers cost alike, so profiling one
        (with embedding, norm and head) tells the peak of them all. Its ``kv_cache_spec`` has ``count`` layers."""
