"""The executor of one worker in this process, as vLLM's ``UniProcExecutor``, and the thread that computes its steps."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

from engine_core.config import CacheSize, EngineConfig
from engine_core.errors import ExecutorError
from engine_core.executor.base import Executor, PendingResult
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.platforms.memory import size_as_told, size_by_profile
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult
from engine_core.worker.model_runner import PendingStep
from engine_core.worker.worker import Worker

Compute = Callable[[], StepResult]
_T = TypeVar("_T")


class StepThread:
    """Runs what is submitted, in order. Holds as many steps as its user submits before asking for results."""

    def __init__(self) -> None:
        """The thread begins to wait for work. It does not keep the process from ending."""
        self._orders: SimpleQueue[tuple[Compute, Future[StepResult]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)
        self._thread.start()

    def submit(self, compute: Compute) -> Future[StepResult]:
        """Compute a step after those before it; what it raises is raised by the future."""
        future: Future[StepResult] = Future()
        self._orders.put((compute, future))
        return future

    def close(self) -> None:
        """Wait until everything submitted is computed, and end the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            compute, future = order
            try:
                future.set_result(compute())
            except BaseException as error:
                future.set_exception(error)
            del order, compute, future  # a result is not kept until the next step


@dataclass(frozen=True, slots=True)
class _PendingResult:
    """A step of the worker whose failure ends the executor."""

    executor: UniProcExecutor
    step: PendingStep
    step_id: int

    def result(self) -> StepResult:
        return self.executor.guard(self.step_id, self.step.result)


class UniProcExecutor(Executor):
    """Starts, runs and closes one ``Worker``."""

    def __init__(self, config: EngineConfig) -> None:
        """Nothing is read or taken before ``start``."""
        self._config = config
        self._worker: Worker | None = None
        self._thread: StepThread | None = None
        self._callbacks: list[Callable[[BaseException], None]] = []
        self._failed = False

    def start(self, progress: StartupProgress) -> None:
        try:
            self._start(progress)
        except BaseException:
            self.close()
            raise

    def _start(self, progress: StartupProgress) -> None:
        with progress.stage("configuration") as stage:
            checkpoint = open_checkpoint(self._config.model, self._config.load)
            self.model = checkpoint.spec
            dtype = self.model.dtype + (f", {checkpoint.quantization} layers" if checkpoint.quantization else "")
            stage.detail = f"{self.model.architecture}, {dtype}, max_model_len {self.model.max_model_len}"
            worker = self._worker = Worker(self._config, checkpoint)
        with progress.stage("device") as stage:
            worker.init_device()
            self.request_memory = worker.device.request_memory
            stage.bytes = worker.device.usable
            stage.detail = worker.device.describe()
        with progress.stage("load weights") as stage:
            worker.load_model(lambda done, total: progress.advance(stage, done, total))
            stage.bytes = worker.model.weight_bytes
            self.model_digest, self.numerics = worker.model_digest, worker.numerics()
            stage.detail = f"model {self.model_digest}, numerics {self.numerics}"
            if worker.hashing_seconds:
                stage.detail += f"; hashed in {worker.hashing_seconds:.2f} s"
        self.cache_size = self._size_cache(worker, progress)
        with progress.stage("allocate KV cache") as stage:
            worker.allocate(self.cache_size)
            self.unwritten_cache_bytes = worker.unwritten_cache_bytes
            stage.bytes = self.cache_size.num_blocks * self.cache_size.bytes_per_block
            tokens = self.cache_size.num_blocks * self.cache_size.block_size
            stage.detail = f"{self.cache_size.num_blocks} blocks of {self.cache_size.block_size}: {tokens} tokens"
        with progress.stage("warm up") as stage:
            made = worker.warm_up()
            found = self._test_numerics(worker)
            left = worker.device.memory_left(self._config.cache, self.cache_size)
            self.largest_step_seconds = worker.largest_step_seconds
            longest = f"the largest step takes about {self.largest_step_seconds:.1g} s"
            stage.detail = "; ".join(part for part in (made, longest, found, left) if part)
        asked = self._config.scheduler.async_scheduling
        overlapped = worker.device.is_asynchronous if asked is None else asked
        self.max_concurrent_steps = 2 if overlapped else 1
        if overlapped and not worker.device.is_asynchronous:
            self._thread = StepThread()

    def _test_numerics(self, worker: Worker) -> str:
        """What the worker's self-test found, for a person; a digest that holds for others only if it passed."""
        if worker.is_bitwise_stable():
            return "a row's bits do not depend on its batch"
        self.numerics = f"unstable {uuid.uuid4().hex}"
        return (
            "WARNING: a row's bits depend on its batch here (on a GPU, --deterministic changes that), so a request "
            "that moves to another engine goes on with a valid sample, but perhaps not with the tokens it would have "
            "had"
        )

    def _size_cache(self, worker: Worker, progress: StartupProgress) -> CacheSize:
        cache = self._config.cache
        self.step_bytes = 0
        if cache.kv_cache_memory_bytes is not None:
            return size_as_told(cache.kv_cache_memory_bytes, worker.limits, worker.bytes_per_block)
        with progress.stage("profile") as stage:
            profile = worker.profile()
            stage.bytes = profile.step_peak
            if worker.device.uses_host_memory:
                self.step_bytes = profile.step_peak
            stage.detail = profile.describe(cache.gpu_memory_utilization)
        return size_by_profile(profile, cache, worker.limits, worker.bytes_per_block)

    def submit(self, plan: StepPlan) -> PendingResult:
        if self._thread is not None:
            return self._thread.submit(lambda: self._launch(plan).result())
        return self._launch(plan)

    def _launch(self, plan: StepPlan) -> _PendingResult:
        worker = self._worker
        if worker is None:
            raise ExecutorError("the executor does not run: it was not started, or is closed")
        return _PendingResult(self, self.guard(plan.step_id, lambda: worker.launch(plan)), plan.step_id)

    def guard(self, step_id: int, compute: Callable[[], _T]) -> _T:
        """Do a part of a step, the first failure of which ends the executor."""
        if self._failed:
            raise ExecutorError("the executor does not run: a step has failed")
        try:
            return compute()
        except BaseException as cause:
            self._failed = True
            for callback in self._callbacks:
                callback(cause)
            if not isinstance(cause, Exception):
                raise  # an interrupt is the caller's, not a failure of the step
            raise ExecutorError(f"step {step_id} failed: {type(cause).__name__}: {cause}") from cause

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
