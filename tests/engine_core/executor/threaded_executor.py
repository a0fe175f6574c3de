"""An executor whose workers are threads of this process: ranks without the time that processes take to start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import Rank
from engine_core.distributed.rendezvous import Rendezvous, open_rendezvous
from engine_core.executor.collective import CollectiveExecutor
from engine_core.executor.worker import DeviceReport, ModelReport, Worker
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult
from engine_core.structured_output.compiler import GrammarCompiler

Sampled = tuple[int, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class _Pending:
    executor: ThreadedExecutor
    future: Future[tuple[StepResult, Sampled] | None]

    def result(self) -> StepResult:
        answer = self.future.result()
        assert answer is not None
        result, sampled = answer
        self.executor.arrived.append(sampled)
        return result


class ThreadedExecutor(CollectiveExecutor):
    """As ``mp`` does: each plan goes to all ranks, with the tokens that have come in since the plan before."""

    spare_blocks: int | None = None
    """Blocks of the cache besides those of the longest sequence; None: as many as there is memory for."""
    tensor_transport: str | None = None
    """How the ranks of a stage exchange tensors; None: as the device would have it."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.workers: list[Worker] = []
        self.threads: list[ThreadPoolExecutor] = []
        self.arrived: list[Sampled] = []

    def start_workers(self, checkpoint: Checkpoint, progress: StartupProgress) -> None:
        parallel = self._config.parallel
        tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        ranks = [Rank(tp, tp_size, pp, pp_size) for pp in range(pp_size) for tp in range(tp_size)]
        self.workers = [Worker(self._config, checkpoint, rank) for rank in ranks]
        self.threads = [ThreadPoolExecutor(max_workers=1) for _ in ranks]

    def collective_rpc(
        self, method: str, *arguments: Any, on_progress: Callable[[int, int], None] | None = None
    ) -> list[Any]:
        last = () if on_progress is None else (lambda done, total: None,)
        calls = [
            thread.submit(getattr(worker, method), *arguments, *last)
            for worker, thread in zip(self.workers, self.threads, strict=True)
        ]
        return [call.result() for call in calls]

    def _size_cache(self, models: Sequence[ModelReport], on_host: bool, progress: StartupProgress) -> KVCacheConfig:
        sized = super()._size_cache(models, on_host, progress)
        if self.spare_blocks is None:
            return sized
        return replace(sized, num_blocks=self._limits.max_blocks_per_seq + self.spare_blocks)

    def rendezvous(self, device: DeviceReport) -> AbstractContextManager[Rendezvous]:
        if self.tensor_transport is None:
            return super().rendezvous(device)
        return open_rendezvous("127.0.0.1", self.tensor_transport, 1)

    def open_grammars(self) -> GrammarCompiler:
        [compiler] = [worker.grammars for worker in self.workers if worker.rank.samples]
        assert compiler is not None
        return compiler

    def start_steps(self) -> None: ...

    def submit(self, plan: StepPlan) -> _Pending:
        arrived, self.arrived = self.arrived, []
        pending = [
            thread.submit(_compute, worker, plan, arrived)
            for worker, thread in zip(self.workers, self.threads, strict=True)
        ]
        (samples,) = [each for each, worker in zip(pending, self.workers, strict=True) if worker.rank.samples]
        return _Pending(self, samples)

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
