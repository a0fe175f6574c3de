"""The interface between the engine and whatever computes its steps.

Constructing an executor is cheap. ``start`` is called once; then the executor computes the plans submitted to it, one
after another. It owns its workers. After ``ExecutorError`` it computes nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from engine_core.config import ModelSpec, RequestMemory
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult


class PendingResult(Protocol):
    """A step that was submitted."""

    def result(self) -> StepResult:
        """Wait until the step is computed. Raises ``ExecutorError``, as ``submit`` does."""


class Executor(ABC):
    """Runs plans. Side effects of each method are stated; anything else is a defect."""

    model: ModelSpec
    """Known after ``start``."""
    kv_cache_config: KVCacheConfig
    """Known after ``start``."""
    unwritten_cache_bytes: int
    """Known after ``start``: host memory that the KV cache will still take as it fills."""
    step_bytes: int
    """Known after ``start``: host memory that the largest step takes, where that was measured; else 0."""
    request_memory: RequestMemory
    """Known after ``start``."""
    model_digest: str
    """Known after ``start``: equal for executors of the same model, however they compute it."""
    numerics: str
    """Known after ``start``: executors of equal digests compute equal tokens for equal requests."""
    largest_step_seconds: float
    """Known after ``start``: about how long the largest step takes."""
    max_concurrent_steps: int
    """Known after ``start``: how many submitted steps may be waiting for their results to be asked for."""

    @abstractmethod
    def start(self, progress: StartupProgress) -> None:
        """Load, profile, allocate and warm up, reporting each stage. Raises ``EngineError`` and closes."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> PendingResult:
        """Compute a step after those submitted before; results are asked for in the same order.

        Where more than one may be submitted, this returns before the step is computed. A step changes only the KV cache
        and the state of the plan's sequences. Raises ``ExecutorError`` with the cause chained, here or where the result
        is asked for; every callback of ``on_failure`` has run by then.
        """

    @abstractmethod
    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call ``callback`` once, from any thread, when the executor can no longer compute, also while it is idle."""

    @abstractmethod
    def close(self) -> None:
        """Wait for steps that were submitted, then free weights and cache. Idempotent."""
