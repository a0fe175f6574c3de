"""Paged attention in plain torch: the reference for other backends, and the fallback where none can be built."""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, KVCacheSpec


class TorchTiledAttention(AttentionBackend):
    """Online softmax over tiles of keys, visited in one fixed order. Constructed without arguments."""

    @staticmethod
    def bytes_per_block(spec: KVCacheSpec) -> int:
        raise NotImplementedError

    @staticmethod
    def allocate(spec: KVCacheSpec, num_blocks: int, device: torch.device) -> list[torch.Tensor]:
        raise NotImplementedError

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> torch.Tensor:
        raise NotImplementedError
