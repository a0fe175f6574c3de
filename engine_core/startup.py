"""Starts an engine from an ``EngineConfig``, stage by stage: configuration, compile kernels (if need be),
device, load weights, profile, allocate KV cache, warm up, serving.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_core.config import EngineConfig
from engine_core.engine import EngineCore
from engine_core.errors import ConfigError
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


def start_engine(config: EngineConfig, progress: StartupProgress, name: str = "") -> StartedEngine:
    """Start an engine, reporting each stage with its seconds and bytes to ``progress``; ranks are titled with ``name``.

    If it raises ``EngineError`` (``ConfigError``, ``CheckpointError``, ``OutOfMemoryError``), everything is closed.
    """
    executor = _executor(config, name)
    executor.start(progress)
    try:
        with progress.stage("serving"):
            return StartedEngine(EngineCore(config, executor), executor)
    except BaseException:
        executor.close()
        raise


def _executor(config: EngineConfig, name: str) -> Executor:
    """Where ``config`` lets workers run. What an executor needs is imported only for it."""
    parallel = config.parallel
    if parallel.ray_address is not None and parallel.backend != "ray":
        accepted = "no value without --distributed-executor-backend ray"
        raise ConfigError("ray_address", parallel.ray_address, accepted)
    if parallel.backend == "uni":
        if parallel.world_size > 1:
            ranks = f"tensor_parallel_size × pipeline_parallel_size is {parallel.world_size}"
            raise ConfigError("distributed_executor_backend", "uni", f"mp or ray for more than one rank; {ranks}")
        return UniProcExecutor(config)
    if parallel.backend == "ray":
        from engine_core.executor.ray import RayExecutor

        return RayExecutor(config, name)
    from engine_core.executor.multiproc import MultiprocExecutor

    return MultiprocExecutor(config, name)
