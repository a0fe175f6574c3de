"""An executor with one worker in this process (like vLLM's ``UniProcExecutor``), and the thread that runs its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from engine_core.config import EngineConfig
from engine_core.errors import ExecutorError
from engine_core.executor.base import PendingResult
from engine_core.executor.collective import CollectiveExecutor, OnProgress
from engine_core.executor.worker import Worker
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult
from engine_core.structured_output.compiler import GrammarCompiler
from engine_core.worker.model_runner import PendingStep

Compute = Callable[[], StepResult]


class StepThread:
    """Runs submitted work in order. The caller bounds how many steps it submits before it asks for results."""

    def __init__(self) -> None:
        """Start the daemon thread."""
        self._orders: SimpleQueue[tuple[Compute, Future[StepResult]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
        self._thread.start()

    def submit(self, compute: Compute) -> Future[StepResult]:
        """Run a step after those before it; the future raises the step's exception."""
        future: Future[StepResult] = Future()
        self._orders.put((compute, future))
        return future

    def close(self) -> None:
        """Wait for all submitted steps, and end the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            compute, future = order
            try:
                future.set_result(compute())
            except BaseException as error:
                future.set_exception(error)
            del order, compute, future  # else they would keep the result in memory until the next step


@dataclass(frozen=True, slots=True)
class _GuardedStep:
    """A submitted step; its failure ends the executor."""

    executor: UniProcExecutor
    step: PendingStep
    step_id: int

    def result(self) -> StepResult:
        return self.executor.guard(self.step_id, self.step.result)


class UniProcExecutor(CollectiveExecutor):
    """Runs one ``Worker`` in this process."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._worker: Worker | None = None
        self._thread: StepThread | None = None

    def start_workers(self, checkpoint: Checkpoint, progress: StartupProgress) -> None:
        self._worker = Worker(self._config, checkpoint)

    def collective_rpc(self, method: str, *arguments: Any, on_progress: OnProgress | None = None) -> list[Any]:
        last = () if on_progress is None else (on_progress,)
        return [getattr(self._running(), method)(*arguments, *last)]

    def open_grammars(self) -> GrammarCompiler:
        compiler = self._running().grammars
        assert compiler is not None  # or the worker would have reported a problem
        return compiler

    def start_steps(self) -> None:
        if self.max_concurrent_steps > 1 and not self._running().device.is_asynchronous:
            self._thread = StepThread()

    def submit(self, plan: StepPlan) -> PendingResult:
        if self._thread is not None:
            return self._thread.submit(lambda: self._launch(plan).result())
        return self._launch(plan)

    def _launch(self, plan: StepPlan) -> _GuardedStep:
        worker = self._running()
        return _GuardedStep(self, self.guard(plan.step_id, lambda: worker.launch(plan)), plan.step_id)

    def _running(self) -> Worker:
        if self._worker is None:
            raise ExecutorError("the executor does not run: it was not started, or is closed")
        return self._worker

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
