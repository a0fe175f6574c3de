"""A tiny model, and an executor that runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_core.config import EngineConfig
from engine_core.executor.collective import CollectiveExecutor
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.startup import choose_workers, start_executor


@pytest.fixture(scope="module")
def config(checkpoint: Path) -> EngineConfig:
    return configure(model=str(checkpoint), dtype="float32", kv_cache_memory_bytes=4 << 20, max_num_seqs=2)


@pytest.fixture
def executor(config: EngineConfig) -> CollectiveExecutor:
    return start_executor(choose_workers(config), StartupProgress())
