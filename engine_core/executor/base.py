"""The interface between the engine and whatever computes its steps.

An executor is constructed cheaply, started once with ``start``, then asked to ``execute`` plans one after the
other. It owns its workers. After ``ExecutorError`` it computes nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from engine_core.config import CacheSize, ModelSpec
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult


class Executor(ABC):
    """Runs plans. Side effects of each method are stated; anything else is a defect."""

    model: ModelSpec
    """Known after ``start``."""
    cache_size: CacheSize
    """Known after ``start``."""
    numerics_fingerprint: str
    """Known after ``start``: equal fingerprints compute equal tokens for equal requests."""

    @abstractmethod
    def start(self, progress: StartupProgress) -> None:
        """Load, profile, allocate and warm up, reporting each stage. Raises ``EngineError``; then it is closed."""

    @abstractmethod
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step. Changes only the KV cache and the state of the plan's sequences.

        Raises ``ExecutorError`` with the cause chained; every callback of ``on_failure`` has run by then.
        """

    @abstractmethod
    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call ``callback`` once, from any thread, when the executor can no longer compute."""

    @abstractmethod
    def close(self) -> None:
        """Free weights and cache. Idempotent."""
