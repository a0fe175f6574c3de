"""Workers in threads of this process: ranks without the time that processes take to start."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_core.config import EngineConfig, ModelSpec
from engine_core.distributed.ranks import Rank
from engine_core.distributed.rendezvous import Rendezvous, open_rendezvous
from engine_core.executor.base import PendingResult
from engine_core.executor.workers import Workers
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult
from engine_core.structured_output.compiler import GrammarCompiler
from engine_core.worker.worker import DeviceReport, Worker

Sampled = tuple[int, npt.NDArray[np.int64]]


class ThreadedWorkers(Workers):
    """As ``mp`` does: each plan goes to all ranks, with the tokens that have come in since the plan before."""

    def __init__(self, config: EngineConfig, tensor_transport: str | None = None) -> None:
        """``tensor_transport``: how the ranks of a stage exchange tensors; None: as the device would have it."""
        super().__init__(config)
        self.workers: list[Worker] = []
        self.threads: list[ThreadPoolExecutor] = []
        self.arrived: list[Sampled] = []
        self.tensor_transport = tensor_transport

    def start(self, checkpoint: Checkpoint, progress: StartupProgress) -> None:
        parallel = self.config.parallel
        tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        ranks = [Rank(tp, tp_size, pp, pp_size) for pp in range(pp_size) for tp in range(tp_size)]
        self.workers = [Worker(self.config, checkpoint, rank) for rank in ranks]
        self.threads = [ThreadPoolExecutor(max_workers=1) for _ in ranks]

    def collective_rpc(
        self,
        method: str,
        *arguments: Any,
        on_progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        last = () if on_progress is None else (lambda done, total: None,)
        calls = [
            thread.submit(getattr(worker, method), *arguments, *last)
            for worker, thread in zip(self.workers, self.threads, strict=True)
        ]
        return [call.result() for call in calls]

    def rendezvous(self, device: DeviceReport) -> AbstractContextManager[Rendezvous]:
        if self.tensor_transport is None:
            return super().rendezvous(device)
        return open_rendezvous("127.0.0.1", self.tensor_transport, 1)

    def open_grammars(self, model: ModelSpec) -> GrammarCompiler:
        [compiler] = [worker.grammars for worker in self.workers if worker.rank.samples]
        assert compiler is not None
        return compiler

    def start_steps(self, max_concurrent_steps: int, largest_step_seconds: float) -> None: ...

    def submit(self, plan: StepPlan) -> PendingResult:
        arrived, self.arrived = self.arrived, []
        pending = [
            thread.submit(_compute, worker, plan, arrived)
            for worker, thread in zip(self.workers, self.threads, strict=True)
        ]
        (samples,) = [each for each, worker in zip(pending, self.workers, strict=True) if worker.rank.samples]
        return PendingResult(lambda: self._take(samples))

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        self.collective_rpc("load_adapter", adapter_id, path, digest)

    def unload_adapter(self, adapter_id: int) -> None:
        self.collective_rpc("unload_adapter", adapter_id)

    def _take(self, future: Future[tuple[StepResult, Sampled] | None]) -> StepResult:
        answer = future.result()
        assert answer is not None
        result, sampled = answer
        self.arrived.append(sampled)
        return result

    def close(self) -> None:
        for thread in self.threads:
            thread.shutdown()
        for worker in self.workers:
            worker.close()


def _compute(worker: Worker, plan: StepPlan, arrived: list[Sampled]) -> tuple[StepResult, Sampled] | None:
    if worker.rank.samples:
        pending = worker.launch(plan)
        result = pending.result()
        assert pending.sampled is not None
        return result, (plan.step_id, pending.sampled)
    for step_id, sampled in arrived:
        worker.commit(step_id, sampled)
    worker.follow(plan)
    return None
