"""Workers in their own processes, by rank: calls, steps, failure and shutdown. A launcher decides where they run.

A rank that fails ends the engine and all other ranks: a group is never repaired.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from queue import Empty, Queue
from typing import Any

from engine_core.config import ModelSpec
from engine_core.distributed.rendezvous import Rendezvous, open_rendezvous
from engine_core.errors import ConfigError, ExecutorError, RankFailedError
from engine_core.executor.base import PendingResult, RankPlace
from engine_core.executor.ranks.connection import (
    AdapterLoaded,
    Call,
    Grammar,
    LoadAdapter,
    Progress,
    Raised,
    RankReport,
    RankStart,
    Returned,
    Sampled,
    Step,
    StepReply,
    UnloadAdapter,
)
from engine_core.executor.ranks.identity import require_equal
from engine_core.executor.ranks.launcher import RankLauncher
from engine_core.executor.ranks.monitor import RankMonitor
from engine_core.executor.ranks.process import RankProcess
from engine_core.executor.workers import OnProgress, Workers
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult
from engine_core.structured_output.compiler import GrammarCompiler
from engine_core.worker.grammars import open_grammars
from engine_core.worker.worker import DeviceReport

_CAUSE_SECONDS = 0.5
"""Time to wait for the cause, once a rank has reported that another is missing."""
_NEWS_SECONDS = 0.5
"""Time after which who waits for news of an adapter looks whether the engine still runs."""
_CLOSE_SECONDS = 2.0
"""Time for ranks to end on request."""
_KILL_SECONDS = 5.0
"""Time for the system to end a process."""
_STEP_FLOOR, _STEP_FACTOR = 60.0, 20.0
"""A step counts as hung, despite heartbeats, after the longer of: seconds, largest steps. A service judges sooner."""


class RankWorkers(Workers):
    """One process per rank."""

    def __init__(self, launcher: RankLauncher) -> None:
        config = launcher.config
        super().__init__(config)
        if config.parallel.world_size > 1 and config.scheduler.async_scheduling:
            raise ConfigError("async_scheduling", True, "no value with more than one rank, as it is for one alone")
        self._launcher = launcher
        self._pid = os.getpid()
        self._ranks: Sequence[RankProcess] = ()
        self._monitor: RankMonitor | None = None
        self._results: list[tuple[int, Sampled]] = []
        """Results that have arrived since the last step was sent."""
        self._sending = threading.Lock()
        self._wake: int | None = None
        """A descriptor, readable once the engine has failed."""
        self._replies = select.poll()
        self._sampler: RankProcess | None = None
        """The rank that samples, and answers steps; None before ``start_steps``."""
        self._adapters: dict[int, Queue[AdapterLoaded]] = {}
        """The ranks' news of adapters that are being loaded, by id."""
        self._is_closed = False
        self._step_limit = 0.0
        """Seconds after which a step counts as hung."""

    def start(self, checkpoint: Checkpoint, progress: StartupProgress) -> None:
        with progress.stage("start ranks") as stage:
            try:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC)
                self._ranks = self._launcher.launch()
            except OSError as error:
                limit = " (ulimit -n)" if error.errno == errno.EMFILE else ""
                raise ExecutorError(f"the ranks cannot be started: {error.strerror}{limit}") from error
            self._monitor = RankMonitor(self._ranks, self.fail, self._launcher.silence, self._take_adapter)
            self._monitor.start()
            for each in self._ranks:
                start = RankStart(self._launcher.config_of(each.rank), each.rank, self._launcher.title(each.rank))
                self._send(each, pickle.dumps(start))
            reports: list[RankReport] = self._collect("start ranks")
            require_equal([report.identity for report in reports], [str(rank) for rank in self._ranks])
            self.places = [
                RankPlace(str(each.rank), report.host, report.pid)
                for each, report in zip(self._ranks, reports, strict=True)
            ]
            stage.detail = ", ".join(f"rank {each.rank}: pid {each.pid} on {each.host}" for each in self.places)

    def rendezvous(self, device: DeviceReport) -> AbstractContextManager[Rendezvous]:
        stages = self.config.parallel.pipeline_parallel_size
        return open_rendezvous(self._launcher.host, device.tensor_transport, stages)

    def collective_rpc(
        self, method: str, *arguments: Any, on_progress: OnProgress | None = None, timeout: float | None = None
    ) -> list[Any]:
        message = pickle.dumps(Call(method, arguments, on_progress is not None))
        for rank in self._running():
            self._send(rank, message)
        return self._collect(method.replace("_", " "), on_progress, timeout)

    def _collect(self, stage: str, on_progress: OnProgress | None = None, timeout: float | None = None) -> list[Any]:
        """The replies of all ranks, by rank; raises the first error that a rank replies with.

        During the start it is raised at once, as nothing follows. Later all replies are awaited, so that none is taken
        for the reply to another call.
        """
        seconds = self.config.parallel.worker_start_timeout if timeout is None else timeout
        end = time.monotonic() + seconds
        raised: Exception | None = None
        progress: dict[RankProcess, Progress] = {}
        results: dict[RankProcess, Any] = {}
        complaint: Exception | None = None
        waiting = {rank.connections.calls: rank for rank in self._ranks}
        wake = self._descriptor()
        while waiting:
            ready = wait([*waiting, wake], max(0.0, end - time.monotonic()))
            if wake in ready:
                raise self.failure.told(_CAUSE_SECONDS)
            if not ready:
                late = ", ".join(map(str, waiting.values()))
                limit = f"{'--worker-start-timeout' if timeout is None else 'timeout'}={seconds:g} s"
                error = ExecutorError(
                    f"{late} did not finish {stage} within {limit}: raise it if that is only slow, as on a busy machine"
                    if complaint is None
                    else str(complaint)
                )
                if self._sampler is not None:
                    self.fail(error)
                raise error from raised or complaint
            for connection in ready:
                rank = waiting[connection]  # type: ignore[index]
                reply = self._receive(rank)
                if isinstance(reply, Progress):
                    progress[rank] = reply
                    if on_progress is not None and len(progress) == len(self._ranks):
                        on_progress(*map(sum, zip(*progress.values(), strict=True)))
                elif not isinstance(reply, Raised):
                    results[rank] = reply.value if isinstance(reply, Returned) else reply
                    del waiting[connection]  # type: ignore[arg-type]
                elif isinstance(reply.error, RankFailedError):  # a consequence: the cause may be on its way
                    complaint, end = reply.error, min(end, time.monotonic() + _CAUSE_SECONDS)
                    del waiting[connection]  # type: ignore[arg-type]
                elif self._sampler is None:
                    raise reply.error
                else:
                    raised = raised or reply.error
                    del waiting[connection]  # type: ignore[arg-type]
        if raised is not None:
            raise raised
        if complaint is not None:
            raise ExecutorError(str(complaint)) from complaint
        return [results[rank] for rank in self._ranks]

    def open_grammars(self, model: ModelSpec) -> GrammarCompiler:
        return open_grammars(self.config.model, model)

    def require_running(self) -> None:
        self._running()

    def expect_grammar(self, grammar: str) -> None:
        """On the rank that samples; this process reports the grammar's errors."""
        if self._sampler is not None:
            self._send(self._sampler, pickle.dumps(Grammar(grammar)))

    def load_adapter(self, adapter_id: int, path: str, digest: str) -> None:
        news = self._adapters[adapter_id] = Queue()
        try:
            message, ranks = pickle.dumps(LoadAdapter(adapter_id, path, digest)), self._running()
            for rank in ranks:
                self._send(rank, message)
            replies = [self._next_news(news) for _ in ranks]
        finally:
            del self._adapters[adapter_id]
        for reply in replies:
            if reply.error is not None:
                self.unload_adapter(adapter_id)
                raise reply.error

    def _next_news(self, news: Queue[AdapterLoaded]) -> AdapterLoaded:
        """Wait for a rank. Raises ``ExecutorError`` once the engine has failed or is closed."""
        while True:
            with suppress(Empty):
                return news.get(timeout=_NEWS_SECONDS)
            self._running()

    def _take_adapter(self, news: AdapterLoaded) -> None:
        if (waiting := self._adapters.get(news.adapter_id)) is not None:
            waiting.put(news)

    def unload_adapter(self, adapter_id: int) -> None:
        message = pickle.dumps(UnloadAdapter(adapter_id))
        for rank in self._running():
            self._send(rank, message)

    def start_steps(self, max_concurrent_steps: int, largest_step_seconds: float) -> None:
        assert self._monitor is not None
        [self._sampler] = [rank for rank in self._ranks if rank.rank.samples]
        for descriptor in (self._sampler.connections.calls.fileno(), self._descriptor()):
            self._replies.register(descriptor, select.POLLIN)
        self._step_limit = max(_STEP_FLOOR, _STEP_FACTOR * largest_step_seconds)
        for rank in self._ranks:
            rank.connections.limit_sending(self._step_limit)
        self._monitor.expect_beats()

    def submit(self, plan: StepPlan) -> PendingResult:
        message = behind_first = pickle.dumps(Step(plan, self._results))
        if plan.encoder is not None and self.config.parallel.pipeline_parallel_size > 1:
            behind_first = pickle.dumps(Step(replace(plan, encoder=None), self._results))  # only the first encodes
        self._results = []
        for each in self._running():
            self._send(each, behind_first if each.rank.pp else message)
        return PendingResult(lambda: self._take_reply(plan.step_id))

    def _take_reply(self, step_id: int) -> StepResult:
        """Wait for the oldest reply not yet taken."""
        self._require_owner()
        if not self._ranks or self._sampler is None:
            raise ExecutorError("the executor does not run: it is closed")
        ready = [each for each, _ in self._replies.poll(1000 * self._step_limit)]
        if not ready:
            self.fail(ExecutorError(f"no reply to step {step_id} within {self._step_limit:.0f} s: the ranks hang"))
        if not ready or self._wake in ready:
            raise self.failure.told(_CAUSE_SECONDS)
        reply: StepReply = self._receive(self._sampler)
        if len(self._ranks) > 1:
            self._results.append((step_id, reply.sampled))
        return reply.result

    def _require_owner(self) -> None:
        if os.getpid() != self._pid:
            raise ExecutorError(f"the ranks are those of process {self._pid}: what it has forked cannot use them")

    def _descriptor(self) -> int:
        assert self._wake is not None
        return self._wake

    def _running(self) -> Sequence[RankProcess]:
        self._require_owner()
        if not self._ranks:
            raise ExecutorError("the executor does not run: it was not started, or is closed")
        if (error := self.failure.error) is not None:
            raise ExecutorError(f"the executor does not run: it has failed: {error}") from error
        return self._ranks

    def _send(self, rank: RankProcess, message: bytes) -> None:
        """Waits while the rank does not read, at most as long as a step may take."""
        with suppress(OSError), self._sending:  # grammars come from any thread
            rank.connections.calls.send_bytes(message)
            return
        raise self._lost(rank)

    def _receive(self, rank: RankProcess) -> Any:
        with suppress(EOFError, OSError):
            return rank.connections.calls.recv()
        raise self._lost(rank)

    def _lost(self, rank: RankProcess) -> BaseException:
        """Why the connection to ``rank`` has failed: the monitor's finding, if any."""
        self.failure.wait(_CAUSE_SECONDS)
        self.fail(ExecutorError(f"{rank} has lost its connection to the engine"))
        return self.failure.told(_CAUSE_SECONDS)

    def fail(self, error: BaseException) -> None:
        """End all ranks at once, and report the ``failure`` once. From any thread, even while idle."""
        if os.getpid() != self._pid:  # a forked copy does not own the ranks
            return
        if not self.failure.set(error):
            return
        ranks = self._ranks
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)
        for rank in ranks:
            rank.connections.shut()
            rank.kill()
        self.failure.tell()
        for rank in ranks:
            rank.wait(_KILL_SECONDS)

    def close(self) -> None:
        if self._is_closed or os.getpid() != self._pid:  # a forked copy does not own the ranks
            return
        self._is_closed = True
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.stop()
        ranks, self._ranks = self._ranks, ()
        end = time.monotonic() + _CLOSE_SECONDS
        if self.failure.error is None:
            for rank in ranks:
                # A rank that does not read is killed below.
                if self._sending.acquire(timeout=_CLOSE_SECONDS):
                    with suppress(OSError):
                        rank.connections.calls.send(None)
                    self._sending.release()
            for rank in ranks:
                rank.wait(max(0.0, end - time.monotonic()))
        for rank in ranks:
            rank.connections.shut()
            rank.kill()
        for rank in ranks:
            rank.wait(_KILL_SECONDS)
            rank.close()
        wake, self._wake = self._wake, None
        if wake is not None:
            os.close(wake)
        self._launcher.close()
