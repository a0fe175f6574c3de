"""Starts an engine from an ``EngineConfig``, stage by stage: configuration, compile kernels (if need be),
device, load weights, profile, allocate KV cache, warm up, serving.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_core.config import EngineConfig
from engine_core.engine import EngineCore
from engine_core.executor.base import Executor
from engine_core.executor.uniproc import UniProcExecutor
from engine_core.progress import StartupProgress


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine that can take requests, and its executor."""

    core: EngineCore
    executor: Executor

    def close(self) -> None:
        """Free weights and cache; the engine computes nothing more. Idempotent."""
        self.executor.close()


def start_engine(config: EngineConfig, progress: StartupProgress) -> StartedEngine:
    """Start an engine, reporting each stage with its seconds and bytes to ``progress``.

    If it raises ``EngineError`` (``ConfigError``, ``CheckpointError``, ``OutOfMemoryError``), everything is closed.
    """
    executor = UniProcExecutor(config)
    executor.start(progress)
    try:
        with progress.stage("serving"):
            return StartedEngine(EngineCore(config, executor), executor)
    except BaseException:
        executor.close()
        raise
