"""The step loop: the thread in which the engine core computes, and the commands that wait for its next step."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from engine_core.engine import EngineCore
from engine_core.errors import RequestError
from engine_core.pooling.params import PoolingRequest
from engine_core.request import Request
from engine_core.scheduling.stats import SchedulerStats
from engine_core.step import SequenceOutput
from services.ring.liveness import step_limit

MAX_CALLS = 64
"""The most functions that may wait to run between two steps."""
_T = TypeVar("_T")
_STATS_INTERVAL = 0.1
_RECENT_STEPS = 100


class TooManyCalls(Exception):
    """``MAX_CALLS`` functions are waiting."""


@dataclass(slots=True)
class RequestCommands:
    """Commands about one request: add it, then cancel some of its choices."""

    request: Request | PoolingRequest | None = None
    """The request to add; None if the core already has it."""
    cancelled: set[int | None] = field(default_factory=set)
    """The choices to cancel; None: all."""


@dataclass(slots=True)
class CoreCommands:
    """Everything that the core must do before its next step."""

    requests: dict[str, RequestCommands] = field(default_factory=dict)
    """Commands keyed by core id, in order of arrival."""
    calls: list[Callable[[], None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.requests or self.calls)


class Inbox:
    """Collects commands from any thread until the step loop's thread takes them.

    Its size is bounded by the number of live requests: cancelling a request that is not yet taken removes it.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Notified on every change. Hold and notify it to wake the step loop for another reason."""
        self._commands = CoreCommands()

    def __bool__(self) -> bool:
        return bool(self._commands)

    def add(self, core_id: str, request: Request | PoolingRequest) -> None:
        with self.changed:
            self._commands.requests[core_id] = RequestCommands(request)
            self.changed.notify()

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Cancel a choice (None: all). False if that removed a request from the inbox: the core never sees it."""
        with self.changed:
            commands = self._commands.requests.setdefault(core_id, RequestCommands())
            if choice is None and commands.request is not None:
                del self._commands.requests[core_id]
                return False
            if choice is None:
                commands.cancelled = {None}
            elif None not in commands.cancelled:
                commands.cancelled.add(choice)
            self.changed.notify()
            return True

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` between two steps. Raises ``TooManyCalls``."""
        with self.changed:
            if len(self._commands.calls) >= MAX_CALLS:
                raise TooManyCalls
            self._commands.calls.append(function)
            self.changed.notify()

    def take(self) -> CoreCommands:
        with self.changed:
            commands, self._commands = self._commands, CoreCommands()
        return commands


@dataclass(slots=True)
class StepReport:
    """The results of one iteration of the loop."""

    outputs: list[SequenceOutput]
    refused: list[tuple[str, RequestError]] = field(default_factory=list)
    """(core id, error) of requests that the core refused."""
    cancelled: list[tuple[str, int | None]] = field(default_factory=list)
    """(core id, choice or None for all) that the core has dropped on command."""
    seconds: float = 0.0
    """Duration of the core's call that completed a step; 0 if none was completed."""
    tokens: int = 0
    """Prompt and output tokens computed in this iteration."""


class StepRecorder(Protocol):
    """An observer of steps, such as a profiler."""

    def step(self, seconds: float, tokens: int) -> bool:
        """Runs in the step loop's thread; returns whether to call it again."""


class StepLoop:
    """Runs ``core`` in its own thread. ``add``, ``cancel``, ``call`` and ``fail`` are thread-safe."""

    def __init__(
        self,
        core: EngineCore,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[StepReport], None],
        failed: Callable[[BaseException], None],
        starting: Callable[[list[str]], None] = lambda core_ids: None,
        largest_step: float = 0.0,
    ) -> None:
        """``report``, ``failed`` and ``starting`` run on ``loop``; after ``failed``, no step is computed.

        ``AsyncEngine`` has ``report`` and ``starting``, ``main`` has ``failed``. ``starting`` gets the core ids of
        requests when the first step that computes them begins. ``largest_step``: estimated seconds of the largest
        possible step.
        """
        self._core = core
        self._loop = loop
        self._report = report
        self._failed = failed
        self._starting = starting
        self.largest_step = largest_step
        self._inbox = Inbox()
        self._stopping = False
        self._has_failed = False
        self._step_seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._turns = 0
        self._busy = False
        self._in_call = False
        """Whether the thread runs a ``call`` or the recorder: torch's profiler takes seconds to start and to stop."""
        self.steps = 0
        """Steps computed since start."""
        self.stats: SchedulerStats = core.stats()
        """Refreshed after a step, at most every 0.1 s; exact when the core is idle."""
        self._stats_at = 0.0
        self.recorder: StepRecorder | None = None
        """Set it through ``call``; removed when its ``step`` returns False."""
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End after the current step; returns whether the thread ended within ``timeout`` seconds."""
        with self._inbox.changed:
            self._stopping = True
            self._inbox.changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def fail(self, error: BaseException) -> None:
        """End as if a step had raised: for failures outside of steps, such as an executor that dies while idle.

        ``failed`` is called once, with the first error, without waiting for the current step, which may never end.
        """
        with self._inbox.changed:
            if self._has_failed:
                return
            self._has_failed = self._stopping = True
            self._inbox.changed.notify()
        self._loop.call_soon_threadsafe(self._failed, error)

    def add(self, core_id: str, request: Request | PoolingRequest) -> None:
        """Add a request to the core under ``core_id`` before the next step."""
        self._inbox.add(core_id, replace(request, request_id=core_id))

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Stop computing a choice (None: all) before the next step, without an output.

        False if that removed a request from the inbox: the core never sees it. Otherwise a report confirms the
        cancellation.
        """
        return self._inbox.cancel(core_id, choice)

    def call(self, function: Callable[[EngineCore], _T]) -> Future[_T]:
        """Run ``function`` on the core between two steps. Raises ``TooManyCalls``."""
        future: Future[_T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self._core))
                except Exception as error:
                    future.set_exception(error)

        self._inbox.call(run)
        return future

    @property
    def longest_step(self) -> float:
        """Duration in seconds of the longest of the last 100 steps."""
        return max(self._step_seconds, default=0.0)

    @property
    def step_timeout(self) -> float:
        """Seconds that a step may take before the engine counts as hung."""
        return step_limit(self.longest_step, self.largest_step)

    @property
    def turn(self) -> int | None:
        """A counter that grows while the thread makes progress; None while it has nothing to do. For the watchdog."""
        return self._turns if (self._busy or self._inbox) and not self._in_call else None

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._iterate()
        except BaseException as error:
            self.fail(error)

    def _wait_for_work(self) -> bool:
        with self._inbox.changed:
            while not (self._inbox or self._stopping or self._core.has_work()):
                self._busy = False
                self._inbox.changed.wait()
            self._busy = True
            self._turns += 1
            return not self._stopping

    def _iterate(self) -> None:
        report = StepReport([])
        # Take commands once per turn: later ones wait, so that a flood of commands cannot keep steps from running.
        commands = self._inbox.take()
        for core_id, of_request in commands.requests.items():
            self._execute(core_id, of_request, report)
        for call in commands.calls:
            with self._unwatched():
                call()
        del commands  # frees cancelled requests, which are no longer charged to any tenant, before the step
        if self._core.has_work():
            self._step(report)
        if report.outputs or report.refused or report.cancelled or report.tokens:
            self._loop.call_soon_threadsafe(self._report, report)
        self._refresh_stats()

    def _execute(self, core_id: str, commands: RequestCommands, report: StepReport) -> None:
        if commands.request is not None:
            try:
                self._core.add(commands.request)
            except RequestError as error:
                report.refused.append((core_id, error))
                return
        for choice in commands.cancelled:
            self._core.cancel(core_id, choice, finish_reason=None)
            report.cancelled.append((core_id, choice))

    def _step(self, report: StepReport) -> None:
        before = self._core.computed_tokens
        start = time.perf_counter()
        report.outputs = self._core.step(self._report_starting)
        report.tokens = self._core.computed_tokens - before
        if not report.tokens:
            return  # choices ended without a step, or the first of overlapping steps was just submitted
        report.seconds = time.perf_counter() - start
        self._step_seconds.append(report.seconds)
        self.steps += 1
        if self.recorder is not None:
            with self._unwatched():
                if not self.recorder.step(report.seconds, report.tokens):
                    self.recorder = None

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        self._in_call = True
        try:
            yield
        finally:
            self._turns += 1
            self._in_call = False

    def _report_starting(self, core_ids: list[str]) -> None:
        self._loop.call_soon_threadsafe(self._starting, core_ids)

    def _refresh_stats(self) -> None:
        now = time.monotonic()
        if now - self._stats_at >= _STATS_INTERVAL or not self._core.has_work():
            self._stats_at = now
            self.stats = self._core.stats()
