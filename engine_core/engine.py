"""The engine core: connects a scheduler to an executor. Requests go in, and each step returns outputs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from engine_core.config import EngineConfig, for_model
from engine_core.errors import StandstillError
from engine_core.executor.base import Executor, PendingResult
from engine_core.pooling.params import PoolingRequest
from engine_core.pooling.validation import validate_pooling_request
from engine_core.request import FinishReason, Request
from engine_core.scheduling import Scheduler, SchedulerStats
from engine_core.step import SequenceOutput, StepPlan
from engine_core.validation import validate_request


class EngineCore:
    """Add requests, call ``step`` while there is work, cancel at any time between steps. Used from one thread."""

    def __init__(self, config: EngineConfig, executor: Executor, clock: Callable[[], float] = time.monotonic) -> None:
        """``executor`` must be started; the caller closes it. Deadlines are times of ``clock``.

        Raises ``ConfigError`` and ``OutOfMemoryError`` if the options do not fit the model and its cache.
        """
        self.model = executor.model
        self._executor = executor
        self._submitted: deque[tuple[StepPlan, PendingResult]] = deque()
        """Submitted steps, oldest first. Between calls of ``step`` there is room for another, except after an
        interrupted wait."""
        kv_cache, model = executor.kv_cache_config, executor.model
        config = for_model(config, model)
        identity = [part.encode() for part in (executor.model_digest, model.dtype, kv_cache.layout)]
        stages = config.parallel.pipeline_parallel_size
        self._scheduler = Scheduler(
            config.scheduler, config.cache, kv_cache, model, clock, identity, stages, executor.step_times
        )

    def check(self, request: Request | PoolingRequest) -> None:
        """Raise ``InvalidRequestError`` for a request that this engine can never serve. Callable from any thread."""
        if isinstance(request, PoolingRequest):
            validate_pooling_request(request, self.model)
            return
        validate_request(request, self.model, self._executor.grammar_support)
        self._scheduler.check(request)

    def add(self, request: Request | PoolingRequest) -> None:
        """Queue a request. Raises ``InvalidRequestError`` or ``QueueFullError``, without changes."""
        self.check(request)
        self._scheduler.add(request)

    def cancel(
        self, request_id: str, choice: int | None = None, finish_reason: FinishReason | None = FinishReason.CANCELLED
    ) -> bool:
        """End a request, or one of its choices (inputs, if it is pooled); False if it is not live.

        The next ``step`` reports the end with ``finish_reason``; None ends silently, and the id is free at once.
        """
        return self._scheduler.cancel(request_id, choice, finish_reason)

    def step(self, starting: Callable[[list[str]], None] | None = None) -> list[SequenceOutput]:
        """Submit a step, wait for the oldest one if the executor takes no more, and return all new outputs.

        With an executor that takes one step at a time, these are the same step; with one that takes more, a step is
        planned while those before it are computed. ``starting`` is called before the step is submitted, with the ids of
        requests that begin in it. After ``ExecutorError`` or ``StandstillError`` the engine is unusable; the latter
        reports a scheduler bug that would otherwise make callers wait forever.
        """
        most = self._executor.max_concurrent_steps
        plan = self._scheduler.schedule() if len(self._submitted) < most else None
        if (started := self._scheduler.take_started()) and starting is not None:
            starting(started)
        outputs = self._scheduler.take_ended()
        if plan is not None:
            self._submitted.append((plan, self._executor.submit(plan)))
        elif not self._submitted and not outputs and self._scheduler.has_work():
            stats = self._scheduler.stats()
            raise StandstillError(
                f"the scheduler plans no step, and none is under way: {stats.waiting_seqs} choices wait, "
                f"{stats.running_seqs} run, and {stats.kv_blocks_used} of {stats.kv_blocks} KV blocks are held"
            )
        if self._submitted and (plan is None or len(self._submitted) == most):
            plan, pending = self._submitted[0]
            outputs += self._scheduler.update(plan, pending.result())
            self._submitted.popleft()  # only after the wait: an interrupted caller may call again
        return outputs

    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return bool(self._submitted) or self._scheduler.has_work()

    def stats(self) -> SchedulerStats:
        return self._scheduler.stats()

    @property
    def computed_tokens(self) -> int:
        """Prompt and output tokens computed since the start, including those recomputed or discarded."""
        return self._scheduler.computed_tokens

    def reset_prefix_cache(self) -> int:
        """Empty the prefix cache, and keep running requests from refilling it; returns its number of blocks."""
        return self._scheduler.reset_prefix_cache()
