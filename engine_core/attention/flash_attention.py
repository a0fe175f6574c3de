"""Paged attention by torch's ``varlen_attn``, which is FlashAttention-2: for NVIDIA GPUs, where it is asked for.

It takes block tables from torch 2.12 on, and pages of a multiple of 256 tokens. All that it needs is on the device, so
it can be captured. Keys are never split over programs whose results are joined: into how many, the kernel would decide
by the longest sequence of the step, so a row's bits would depend on the others, and a captured graph would keep what
fitted the step that it was captured with.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from engine_core.attention.base import AttentionMetadata, KVCacheSpec
from engine_core.attention.paged import PagedAttention

PAGE = 256
"""Tokens of whose multiple a block must be."""
_ALL, _CAUSAL = (-1, -1), (-1, 0)
"""Keys that a row sees, left and right of its own."""
_WHOLE = 1
"""Splits of a sequence's keys."""
_TAKEN = {"block_table", "seqused_k", "num_splits"}
"""Arguments that not every torch's has."""


def varlen_function() -> Any | None:
    """The function of this torch; None where there is none that takes block tables and a number of splits."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if inspect.signature(varlen_attn).parameters.keys() >= _TAKEN else None


class FlashAttention(PagedAttention):
    """Heads of up to 256, of bfloat16 or float16."""

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
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        key, value = kv_cache.transpose(2, 3)  # [blocks, block size, Hkv, D] each
        output: torch.Tensor = self._function(
            query,
            key,
            value,
            metadata.query_starts,
            # Of the keys' boundaries only the shape is looked at: ``seqused_k`` has their lengths.
            metadata.query_starts,
            metadata.max_query_len,
            metadata.max_seq_len,
            scale=scale,
            # A single row sees all; said so, the heads that share keys are computed as rows of one program.
            window_size=_ALL if metadata.max_query_len == 1 else _CAUSAL,
            enable_gqa=True,
            seqused_k=metadata.seq_lens,
            block_table=metadata.block_tables,
            num_splits=_WHOLE,
        )
        return output.flatten(1)
