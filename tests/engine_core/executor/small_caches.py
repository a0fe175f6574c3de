"""A KV cache of a size that a test chooses, whatever memory there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.startup import Startup
from engine_core.worker.input_batch import BatchLimits


@contextmanager
def blocks_to_spare(count: int | None) -> Iterator[None]:
    """Executors that start meanwhile have that many blocks besides those of the longest sequence; None: all."""
    sized = Startup._size_cache

    def size_cache(self: Startup, models: Any, limits: BatchLimits, device: Any) -> tuple[KVCacheConfig, int]:
        found, step_bytes = sized(self, models, limits, device)
        if count is None:
            return found, step_bytes
        blocks = limits.max_blocks_per_seq + count
        assert found.num_blocks >= blocks
        return replace(found, num_blocks=blocks), step_bytes

    with mock.patch.object(Startup, "_size_cache", size_cache):
        yield
