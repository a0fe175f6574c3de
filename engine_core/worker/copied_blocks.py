"""Copies of blocks within the cache: a fork of a sequence writes to its own last block."""

from __future__ import annotations

import numpy as np
import torch

from engine_core.async_copy import upload
from engine_core.attention.base import AttentionBackend


@torch.inference_mode()
def copy_blocks(attention: AttentionBackend, kv_caches: list[torch.Tensor], pairs: list[tuple[int, int]]) -> None:
    """Copy blocks in the caches of all layers; ``pairs`` of (source, target), all at once."""
    distinct = {cache.untyped_storage().data_ptr(): cache for cache in kv_caches}  # layers of groups share memory
    sources, targets = np.array(pairs, np.int64).T
    for cache in distinct.values():
        attention.copy_blocks(cache, *upload([sources.copy(), targets.copy()], cache.device))
