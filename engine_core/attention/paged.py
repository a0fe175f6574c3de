"""The base of attention backends for NVIDIA GPUs: writes the KV cache."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol, runtime_checkable

import torch
import triton

from engine_core.attention.base import (
    Angles,
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    RotaryOp,
    with_dense_rows,
)
from engine_core.errors import UnsupportedModelError
from engine_core.kernels.triton import AS_WRITTEN
from engine_core.kernels.triton.cache import write_keys_and_values


@runtime_checkable
class CachingRotaryOp(RotaryOp, Protocol):
    """A rotation that writes keys and values straight to the cache in the default layout, which saves a kernel."""

    def into_cache(
        self, heads: torch.Tensor, angles: Angles | None, kv_cache: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Return queries [T, Hq, D]; write keys and values to ``slots`` [T] of ``kv_cache``, except slots below 0."""


class PagedAttention(AttentionBackend):
    """Nothing is written to a slot below 0."""

    @abstractmethod
    def attend(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """[T, Hq · D] for ``query`` [T, Hq, D]; the step's keys and values are already in ``kv_cache``."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        if key.shape[1]:
            _write(with_dense_rows(key), with_dense_rows(value), kv_cache, metadata.slot_mapping)
        return self.attend(with_dense_rows(query), kv_cache, metadata, options)

    def forward_latents(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor,
        latent: torch.Tensor,
        rope: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        raise UnsupportedModelError("latent attention on a GPU needs --attention-backend triton")

    def forward_heads(
        self,
        heads: torch.Tensor,
        rotate: RotaryOp,
        angles: Angles | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        if not isinstance(rotate, CachingRotaryOp):
            return super().forward_heads(heads, rotate, angles, kv_cache, metadata, options)
        query = rotate.into_cache(heads, angles, kv_cache, metadata.slot_mapping)
        return self.attend(query, kv_cache, metadata, options)


def _write(key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor) -> None:
    _, num_kv_heads, head_dim = key.shape
    write_keys_and_values[(len(key),)](
        key,
        value,
        kv_cache,
        slots,
        key.stride(0),
        value.stride(0),
        kv_cache.stride(0),
        kv_cache.stride(1),
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=kv_cache.shape[3],
        WIDTH=triton.next_power_of_2(num_kv_heads * head_dim),
        **AS_WRITTEN,
    )
