"""One worker in this process (like vLLM's ``UniProcExecutor``), and the thread that computes its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from engine_core.config import EngineConfig, ModelSpec
from engine_core.distributed.ranks import Rank
from engine_core.errors import ExecutorError
from engine_core.executor.base import PendingResult
from engine_core.executor.workers import OnProgress, Workers
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult
from engine_core.structured_output.compiler import GrammarCompiler
from engine_core.worker.worker import Worker

_T = TypeVar("_T")
Compute = Callable[[], StepResult]


class StepThread:
    """Runs submitted work in order. The caller bounds the number of steps in flight."""

    def __init__(self) -> None:
        """Start the daemon thread."""
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
        self._thread.start()

    def submit(self, compute: Compute) -> PendingResult:
        """Run a step after those before it; its ``result`` raises the step's exception."""
        future: Future[StepResult] = Future()

        def run() -> None:
            try:
                future.set_result(compute())
            except BaseException as error:
                future.set_exception(error)

        self._orders.put(run)
        return PendingResult(future.result)

    def run(self, function: Callable[[], None]) -> None:
        """Call ``function``, which raises nothing, after the steps submitted before."""
        self._orders.put(function)

    def close(self) -> None:
        """Wait for all submitted steps, and end the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            order()
            del order  # it would keep the result in memory until the next step


class UniProcWorker(Workers):
    """Runs one ``Worker`` in this process."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._worker: Worker | None = None
        self._thread: StepThread | None = None

    def start(self, checkpoint: Checkpoint, progress: StartupProgress) -> None:
        parallel = self.config.parallel
        rank = Rank(ranks_on_host=parallel.data_parallel_size, local=parallel.data_parallel_rank)
        self._worker = Worker(self.config, checkpoint, rank)

    def collective_rpc(
        self, method: str, *arguments: Any, on_progress: OnProgress | None = None, timeout: float | None = None
    ) -> list[Any]:
        last = () if on_progress is None else (on_progress,)
        return [getattr(self._running(), method)(*arguments, *last)]

    def open_grammars(self, model: ModelSpec) -> GrammarCompiler:
        compiler = self._running().grammars
        assert compiler is not None  # or the worker would have reported a problem
        return compiler

    def start_steps(self, max_concurrent_steps: int, largest_step_seconds: float) -> None:
        if max_concurrent_steps > 1 and not self._running().device.is_asynchronous:
            self._thread = StepThread()

    def submit(self, plan: StepPlan) -> PendingResult:
        if self._thread is not None:
            return self._thread.submit(lambda: self._launch(plan).result())
        return self._launch(plan)

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        self._running().load_adapter(adapter_id, path, digest)

    def unload_adapter(self, adapter_id: int) -> None:
        worker = self._running()
        if (thread := self._thread) is not None:  # a submitted step that has not begun may still need it
            thread.run(lambda: worker.unload_adapter(adapter_id))
        else:
            worker.unload_adapter(adapter_id)

    def _launch(self, plan: StepPlan) -> PendingResult:
        worker = self._running()
        step = self._guard(plan.step_id, lambda: worker.launch(plan))
        return PendingResult(lambda: self._guard(plan.step_id, step.result))

    def _guard(self, step_id: int, compute: Callable[[], _T]) -> _T:
        """Run ``compute``, part of a step; the first failure ends the executor."""
        if self.failure.error is not None:
            raise ExecutorError("the executor does not run: it has failed")
        try:
            return compute()
        except Exception as cause:
            error = ExecutorError(f"step {step_id} failed: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            self._fail(error)
            raise error from cause
        except BaseException as interrupt:  # of the caller, but it leaves the step incomplete
            self._fail(interrupt)
            raise

    def _fail(self, error: BaseException) -> None:
        if self.failure.set(error):
            self.failure.tell()

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
