"""The interface to an engine's workers: start, calls, plans. Implementations differ only in where workers run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from engine_core.config import EngineConfig, ModelSpec
from engine_core.distributed.ranks import ranks_on_one_host
from engine_core.distributed.rendezvous import Rendezvous, open_rendezvous
from engine_core.executor.base import PendingResult, RankPlace
from engine_core.executor.failure import Failure
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan
from engine_core.structured_output.compiler import GrammarCompiler
from engine_core.worker.worker import DeviceReport

OnProgress = Callable[[int, int], None]
"""Called with (done, total)."""


class Workers(ABC):
    """Call ``start``, ``collective_rpc`` for each stage of the start-up, ``start_steps``, ``submit`` for each step, and
    ``close``.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Reads no files and allocates nothing; ``start`` does."""
        self.config = config
        self.failure = Failure()
        self.names: Sequence[str] = [f"rank {rank}" for rank in ranks_on_one_host(config.parallel)]
        """By rank, for a person."""
        self.places: Sequence[RankPlace] = ()
        """Known after ``start``; empty if this process computes."""

    @abstractmethod
    def start(self, checkpoint: Checkpoint, progress: StartupProgress) -> None:
        """Create the workers; they allocate nothing yet."""

    @abstractmethod
    def collective_rpc(
        self, method: str, *arguments: Any, on_progress: OnProgress | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Call ``method`` of every ``Worker``; returns the results by rank, or raises the first exception.

        ``on_progress``, the method's last argument, receives the total progress of all workers. Ranks in processes of
        their own have ``timeout`` seconds, by default ``worker_start_timeout``. Once there are steps, workers of which
        one does not answer have failed.
        """

    @abstractmethod
    def open_grammars(self, model: ModelSpec) -> GrammarCompiler:
        """The compiler of this process; needs loaded models. Raises ``GrammarsUnavailableError``."""

    def rendezvous(self, device: DeviceReport) -> AbstractContextManager[Rendezvous]:
        """Where several workers meet while the context is entered."""
        return open_rendezvous("127.0.0.1", device.tensor_transport, self.config.parallel.pipeline_parallel_size)

    @abstractmethod
    def start_steps(self, max_concurrent_steps: int, largest_step_seconds: float) -> None:
        """Prepare for plans, up to ``max_concurrent_steps`` in flight."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> PendingResult:
        """As ``Executor.submit``."""

    def require_running(self) -> None:  # noqa: B027  # where this process computes, each call says so itself
        """Raise ``ExecutorError`` if the workers were not started, have failed or are closed."""

    def expect_grammar(self, grammar: str) -> None:  # noqa: B027  # nothing to do where this process computes
        """Have the worker that samples compile ``grammar``, which a plan will bring, beside the steps."""

    @abstractmethod
    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        """As ``Executor.load_adapter``."""

    @abstractmethod
    def unload_adapter(self, adapter_id: int) -> None:
        """As ``Executor.unload_adapter``."""

    @abstractmethod
    def close(self) -> None:
        """As ``Executor.close``."""
