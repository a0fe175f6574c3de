"""A tiny model, and an executor that runs it."""

from __future__ import annotations

import pytest

from engine_core.config import EngineConfig
from engine_core.executor.uniproc import UniProcExecutor
from engine_core.llm import configure
from engine_core.progress import StartupProgress

from ..models.tiny_models import CASES, make_model, save_model


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    path = save_model(make_model(CASES["llama-gqa"]), tmp_path_factory.mktemp("model"))
    return configure(model=str(path), dtype="float32", kv_cache_memory_bytes=4 << 20, max_num_seqs=2)


@pytest.fixture
def executor(config: EngineConfig) -> UniProcExecutor:
    executor = UniProcExecutor(config)
    executor.start(StartupProgress())
    return executor
