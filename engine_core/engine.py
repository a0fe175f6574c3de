"""The engine: requests in, outputs step by step. It joins a scheduler to an executor and does nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine_core.config import EngineConfig
from engine_core.executor.base import Executor
from engine_core.request import FinishCause, Request
from engine_core.scheduling import Scheduler, SchedulerStats
from engine_core.step import SequenceOutput
from engine_core.validation import validate_request


class EngineCore:
    """Add requests, call ``step`` while there is work, cancel at any time between steps. Used from one thread."""

    def __init__(self, config: EngineConfig, executor: Executor, clock: Callable[[], float] = time.monotonic) -> None:
        """``executor`` has been started and stays the caller's to close; ``clock`` is the one deadlines are on.

        Raises ``ConfigError`` and ``OutOfMemoryError`` where the options do not go with the model and its cache.
        """
        self.model = executor.model
        self._executor = executor
        self._scheduler = Scheduler(config.scheduler, config.cache, executor.cache_size, executor.model, clock)

    def add(self, request: Request) -> None:
        """Queue a request. Raises ``InvalidRequestError`` or ``QueueFullError``; then nothing has changed."""
        validate_request(request, self.model)
        self._scheduler.add(request)

    def cancel(
        self, request_id: str, choice: int | None = None, cause: FinishCause | None = FinishCause.CANCELLED
    ) -> bool:
        """End a request, or one choice of it; False if there was nothing to end, which is no error.

        The next ``step`` reports the end with ``cause``; None ends silently, and the id can be used again at once.
        """
        return self._scheduler.cancel(request_id, choice, cause)

    def step(self, starting: Callable[[list[str]], None] | None = None) -> list[SequenceOutput]:
        """Compute one step and return all news since the last. After ``ExecutorError`` the engine is of no more use.

        ``starting`` is told, before they are computed, of requests that the step is the first one to compute.
        """
        plan = self._scheduler.schedule()
        if (started := self._scheduler.take_started()) and starting is not None:
            starting(started)
        outputs = self._scheduler.take_ended()
        if plan is not None:
            result = self._executor.execute(plan)
            outputs += self._scheduler.update(plan, result)
        return outputs

    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return self._scheduler.has_work()

    def stats(self) -> SchedulerStats:
        """Load and counters now."""
        return self._scheduler.stats()

    @property
    def computed_tokens(self) -> int:
        """Prompt and output tokens computed since the start, those computed again included."""
        return self._scheduler.computed_tokens

    def reset_prefix_cache(self) -> int:
        """Let nothing computed so far be found by later requests; returns how many blocks could be."""
        return self._scheduler.reset_prefix_cache()
