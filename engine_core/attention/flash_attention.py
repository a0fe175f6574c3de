"""Paged attention by torch's ``varlen_attn``, which is FlashAttention-2: for NVIDIA GPUs, on request.

Needs torch 2.12 or later (for block tables), and pages of a multiple of 256 tokens. All inputs are on the device, so it
can be captured. A sequence's keys are never split: the kernel would choose the number of splits by the longest sequence
of the step, so a row's bits would depend on the other rows, and a captured graph would keep its number of splits.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from engine_core.attention.base import AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.attention.paged import PagedAttention

PAGE = 256
"""Block sizes must be a multiple of this many tokens."""
_ALL, _CAUSAL = (-1, -1), (-1, 0)
"""Number of keys to the left and right of its own that a row attends to; −1: all."""
_WHOLE = 1
"""Number of splits of a sequence's keys."""
_TAKEN = {"block_table", "seqused_k", "num_splits"}
"""Arguments that ``varlen_attn`` lacks in some versions of torch."""


def varlen_function() -> Any | None:
    """``varlen_attn`` of this torch; None if it is missing, or takes no block tables or number of splits."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if inspect.signature(varlen_attn).parameters.keys() >= _TAKEN else None


class FlashAttention(PagedAttention):
    """Head sizes up to 256, in bfloat16 or float16."""

    def __init__(self, function: Any) -> None:
        """``function`` is what ``varlen_function`` returns."""
        self._function = function

    def numerics(self, spec: KVCacheSpec) -> str:
        return f"varlen_attn of torch {torch.__version__}"

    def attend(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        key, value = kv_cache.transpose(2, 3)  # [blocks, block size, Hkv, D] each
        output: torch.Tensor = self._function(
            query,
            key,
            value,
            metadata.query_starts,
            # Only the shape of the keys' boundaries matters: ``seqused_k`` has their lengths.
            metadata.query_starts,
            metadata.max_query_len,
            metadata.max_seq_len,
            scale=options.scale,
            # A single row attends to all keys. Without a mask, heads that share keys become rows of one program.
            window_size=_ALL if metadata.max_query_len == 1 else _CAUSAL,
            enable_gqa=True,
            seqused_k=metadata.seq_lens,
            block_table=metadata.block_tables,
            num_splits=_WHOLE,
        )
        return output.flatten(1)
