"""The base of executors whose workers run in processes of their own: calls, steps, failure and the end.

A subclass decides where the processes are. A rank that fails ends the executor, and all other ranks: a group is never
repaired.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import Rank
from engine_core.errors import ConfigError, ExecutorError, RankFailedError
from engine_core.executor.base import PendingResult, RankPlace
from engine_core.executor.collective import CollectiveExecutor, OnProgress
from engine_core.executor.grammars import open_grammars
from engine_core.executor.identity import require_equal
from engine_core.executor.rank_connection import (
    Call,
    Grammar,
    Progress,
    Raised,
    RankReport,
    RankStart,
    Returned,
    Sampled,
    Step,
    StepReply,
)
from engine_core.executor.rank_monitor import RankMonitor
from engine_core.executor.rank_process import RankProcess
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.progress import StartupProgress
from engine_core.step import StepPlan, StepResult
from engine_core.structured_output.compiler import GrammarCompiler

_CAUSE_SECONDS = 0.5
"""For the rank that failed first to say so, once another has said that it misses one."""
_CLOSE_SECONDS = 2.0
"""For ranks to end when they are asked to."""
_KILL_SECONDS = 5.0
"""For the system to end a process."""
_STEP_FLOOR, _STEP_FACTOR = 60.0, 20.0
"""Seconds, and largest steps, after which a step whose ranks all beat counts as hung. A service judges sooner."""


class RemoteExecutor(CollectiveExecutor):
    """One process per rank."""

    silence = 0.7
    """Seconds without a beat after which a rank counts as lost."""

    def __init__(self, config: EngineConfig, name: str = "") -> None:
        """``name``: of the engine, for the titles of its ranks."""
        super().__init__(config)
        if config.parallel.world_size > 1 and config.scheduler.async_scheduling:
            raise ConfigError("async_scheduling", True, "no value with more than one rank, as it is for one alone")
        self._pid = os.getpid()
        self._name = name or f"pid {self._pid}"
        self._ranks: list[RankProcess] = []
        self._monitor: RankMonitor | None = None
        self._results: list[tuple[int, Sampled]] = []
        """Results that have arrived since the last message."""
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._failing, self._told = threading.Event(), threading.Event()
        self._replies = select.poll()

    @abstractmethod
    def start_ranks(self) -> Sequence[RankProcess]:
        """Start the processes, by rank. What it raises must leave none behind. Raises ``EngineError``."""

    def config_of(self, rank: Rank) -> EngineConfig:
        """What the worker of a rank is made with."""
        return self._config

    def title(self, rank: Rank) -> str:
        """Of the process of a rank."""
        return f"ringline engine {self._name} rank {rank}"

    def start(self, progress: StartupProgress) -> None:
        super().start(progress)
        self.unwritten_cache_bytes = self.step_bytes = 0  # they are in other processes

    def start_workers(self, checkpoint: Checkpoint, progress: StartupProgress) -> None:
        with progress.stage("start ranks") as stage:
            try:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC)  # readable once the executor has failed
                self._ranks = list(self.start_ranks())
            except OSError as error:
                limit = " (ulimit -n)" if error.errno == errno.EMFILE else ""
                raise ExecutorError(f"the ranks cannot be started: {error.strerror}{limit}") from error
            self._monitor = RankMonitor(self._ranks, self.fail, self.silence)
            self._monitor.start()
            for rank in self._ranks:
                self._send(rank, pickle.dumps(RankStart(self.config_of(rank.rank), rank.rank, self.title(rank.rank))))
            reports: list[RankReport] = self._collect("start ranks", None)
            require_equal([report.identity for report in reports], [str(rank) for rank in self._ranks])
            self.ranks = [
                RankPlace(str(each.rank), report.host, report.pid)
                for each, report in zip(self._ranks, reports, strict=True)
            ]
            stage.detail = ", ".join(f"rank {each.rank}: pid {each.pid} on {each.host}" for each in self.ranks)

    def collective_rpc(self, method: str, *arguments: Any, on_progress: OnProgress | None = None) -> list[Any]:
        message = pickle.dumps(Call(method, arguments, on_progress is not None))
        for rank in self._running():
            self._send(rank, message)
        return self._collect(method.replace("_", " "), on_progress)

    def _collect(self, stage: str, on_progress: OnProgress | None) -> list[Any]:
        """The replies of all ranks; raises what the first one raised that failed."""
        timeout = self._config.parallel.worker_start_timeout
        end = time.monotonic() + timeout
        progress: dict[RankProcess, Progress] = {}
        results: dict[RankProcess, Any] = {}
        complaint: Exception | None = None
        waiting = {rank.connections.calls: rank for rank in self._ranks}
        while waiting:
            ready = wait([*waiting, self._wake], max(0.0, end - time.monotonic()))
            if self._wake in ready:
                raise self._why()
            if not ready:
                late = ", ".join(map(str, waiting.values()))
                if complaint is not None:
                    raise ExecutorError(str(complaint)) from complaint
                raise ExecutorError(
                    f"{late} did not finish {stage} within --worker-start-timeout={timeout:g} s: raise it if that is "
                    "only slow, as on a busy machine"
                )
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
                elif isinstance(reply.error, RankFailedError):  # not the cause, which may be on its way
                    complaint, end = reply.error, min(end, time.monotonic() + _CAUSE_SECONDS)
                    del waiting[connection]  # type: ignore[arg-type]
                else:
                    raise reply.error
        if complaint is not None:
            raise ExecutorError(str(complaint)) from complaint
        return [results[rank] for rank in self._ranks]

    def open_grammars(self) -> GrammarCompiler:
        return open_grammars(self._config.model, self.model)

    def compile_grammar(self, grammar: str) -> None:
        """Here, where errors are found, and meanwhile on the rank that samples."""
        self._running()
        if self._grammars is not None and not self._grammars.has(grammar):
            self._send(self._sampler, pickle.dumps(Grammar(grammar)))
        super().compile_grammar(grammar)

    def start_steps(self) -> None:
        assert self._monitor is not None
        [self._sampler] = [rank for rank in self._ranks if rank.rank.samples]
        for descriptor in (self._sampler.connections.calls.fileno(), self._wake):
            self._replies.register(descriptor, select.POLLIN)
        self._step_limit = max(_STEP_FLOOR, _STEP_FACTOR * self.largest_step_seconds)
        for rank in self._ranks:
            rank.connections.limit_sending(self._step_limit)
        self._monitor.expect_beats()

    def submit(self, plan: StepPlan) -> PendingResult:
        message = pickle.dumps(Step(plan, self._results))
        self._results = []
        for rank in self._running():
            self._send(rank, message)
        return _RemoteStep(self, plan.step_id)

    def take_reply(self, step_id: int) -> StepResult:
        """Wait for the reply to the oldest step whose reply was not taken."""
        self._require_owner()
        if not self._ranks:
            raise ExecutorError("the executor does not run: it is closed")
        ready = [each for each, _ in self._replies.poll(1000 * self._step_limit)]
        if not ready:
            self.fail(ExecutorError(f"no reply to step {step_id} within {self._step_limit:.0f} s: the ranks hang"))
        if not ready or self._wake in ready:
            raise self._why()
        reply: StepReply = self._receive(self._sampler)
        if len(self._ranks) > 1:
            self._results.append((step_id, reply.sampled))
        return reply.result

    def _require_owner(self) -> None:
        if os.getpid() != self._pid:
            raise ExecutorError(f"the ranks are those of process {self._pid}: what it has forked cannot use them")

    def _running(self) -> list[RankProcess]:
        self._require_owner()
        if not self._ranks:
            raise ExecutorError("the executor does not run: it was not started, or is closed")
        if self._failing.is_set():
            raise ExecutorError(f"the executor does not run: it has failed: {self._error}") from self._error
        return self._ranks

    def _send(self, rank: RankProcess, message: bytes) -> None:
        """Waits while a rank does not read, at most as long as a step may take."""
        with suppress(OSError), self._sending:  # grammars come from any thread
            rank.connections.calls.send_bytes(message)
            return
        raise self._lost()

    def _receive(self, rank: RankProcess) -> Any:
        with suppress(EOFError, OSError):
            return rank.connections.calls.recv()
        raise self._lost()

    def _lost(self) -> BaseException:
        """The reason why a connection does not work, which the monitor finds."""
        self._failing.wait(_CAUSE_SECONDS)
        self.fail(ExecutorError("a rank has lost its connection to the engine"))
        return self._why()

    def _why(self) -> BaseException:
        """What has made the executor fail, once everyone has been told."""
        self._told.wait(_CAUSE_SECONDS)
        assert self._error is not None
        return self._error

    def fail(self, error: BaseException) -> None:
        """End all ranks at once, and call the ``on_failure`` callbacks once. From any thread, even while idle."""
        if os.getpid() != self._pid:  # a forked copy does not own the ranks
            return
        with self._lock:
            if self._failing.is_set():
                return
            self._error = error
            self._failing.set()
        os.eventfd_write(self._wake, 1)
        for rank in self._ranks:
            rank.connections.shut()
            rank.kill()
        try:
            super().fail(error)
        finally:
            self._told.set()
        for rank in self._ranks:
            rank.wait(_KILL_SECONDS)

    def close(self) -> None:
        if self._monitor is None or os.getpid() != self._pid:  # a forked copy does not own the ranks
            return
        self._monitor.stop()
        self._monitor = None
        ranks, self._ranks = self._ranks, []
        end = time.monotonic() + _CLOSE_SECONDS
        if not self._failing.is_set():
            for rank in ranks:
                # One that does not read what is sent to it is killed below.
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
        os.close(self._wake)


class _RemoteStep:
    """The future result of a submitted step. May be asked again after an interrupt."""

    def __init__(self, executor: RemoteExecutor, step_id: int) -> None:
        self._executor = executor
        self._step_id = step_id
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._executor.take_reply(self._step_id)
        return self._result
