"""The thread in which the engine core computes, and the orders that wait for its next turn."""

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
from engine_core.request import Request
from engine_core.scheduling.stats import SchedulerStats
from engine_core.step import SequenceOutput
from services.ring.liveness import step_limit

MAX_CALLS = 64
"""Functions that wait to be run between two steps."""
_T = TypeVar("_T")
_STATS_INTERVAL = 0.1
_RECENT_STEPS = 100


class TooManyCalls(Exception):
    """As many functions as may be wait already."""


@dataclass(slots=True)
class RequestOrders:
    """What the core is to do about one request: begin it, then cancel some of its choices."""

    request: Request | None = None
    """To begin, unless that was handed over before."""
    cancelled: set[int | None] = field(default_factory=set)
    """Choices; None for all of them."""


@dataclass(slots=True)
class Orders:
    """All that the core is to do before its next step."""

    requests: dict[str, RequestOrders] = field(default_factory=dict)
    """By their names in the core, in the order in which they came."""
    calls: list[Callable[[], None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.requests or self.calls)


class Inbox:
    """Filled from any thread, and emptied by the one that computes."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """To be held, and notified, by who wakes the thread for another reason."""
        self._orders = Orders()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._orders)

    def add(self, core_id: str, request: Request) -> None:
        """Begin a request."""
        with self.changed:
            self._orders.requests[core_id] = RequestOrders(request)
            self.changed.notify()

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Cancel a choice of a request, or all; False if that was done here, because the core has not heard of it."""
        with self.changed:
            orders = self._orders.requests.setdefault(core_id, RequestOrders())
            if choice is None and orders.request is not None:
                del self._orders.requests[core_id]
                return False
            if choice is None:
                orders.cancelled = {None}
            elif None not in orders.cancelled:
                orders.cancelled.add(choice)
            self.changed.notify()
            return True

    def call(self, function: Callable[[], None]) -> None:
        """Run a function. Raises ``TooManyCalls``."""
        with self.changed:
            if len(self._orders.calls) >= MAX_CALLS:
                raise TooManyCalls
            self._orders.calls.append(function)
            self.changed.notify()

    def take(self) -> Orders:
        """All that waits."""
        with self.changed:
            orders, self._orders = self._orders, Orders()
        return orders


@dataclass(slots=True)
class StepReport:
    """What one turn of the loop brought."""

    outputs: list[SequenceOutput]
    refused: list[tuple[str, RequestError]] = field(default_factory=list)
    """Requests that the core did not take."""
    cancelled: list[tuple[str, int | None]] = field(default_factory=list)
    """Requests, or choices of them, that the core has let go of because it was told to."""
    seconds: float = 0.0
    """The step's duration, or where steps overlap, the time from the step before; 0 if none was computed."""
    tokens: int = 0
    """Prompt and output tokens that the step computed."""


class StepRecorder(Protocol):
    """Somebody who wants to see each step."""

    def step(self, seconds: float, tokens: int) -> bool:
        """Called after a step, in the step loop's thread; returns whether to go on."""


class StepLoop:
    """Runs ``core`` in a thread of its own. ``add``, ``cancel`` and ``call`` are safe from any thread."""

    def __init__(
        self,
        core: EngineCore,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[StepReport], None],
        failed: Callable[[BaseException], None],
        starting: Callable[[list[str]], None] = lambda core_ids: None,
        largest_step: float = 0.0,
    ) -> None:
        """``report``, ``failed`` and ``starting`` run on ``loop``; after ``failed`` nothing is computed any more.

        ``starting`` hears of requests at the beginning of the first step that computes them. ``largest_step``: about
        how many seconds the largest step takes.
        """
        self._core = core
        self._loop = loop
        self._report = report
        self._failed = failed
        self._starting = starting
        self.largest_step = largest_step
        self._inbox = Inbox()
        self._stopping = False
        self._step_seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._turns = 0
        self._busy = False
        self._in_call = False
        """Whether the thread does what an operator asked for; torch's profiler takes seconds to begin and to end."""
        self.steps = 0
        """Steps computed since start."""
        self.stats: SchedulerStats = core.stats()
        """Not older than 0.1 s while the core is busy, exact when it is idle."""
        self._stats_at = 0.0
        self.recorder: StepRecorder | None = None
        """Set through ``call``; it is gone when it has seen enough."""
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """End after the step under way; returns whether that came within ``timeout`` seconds."""
        with self._inbox.changed:
            self._stopping = True
            self._inbox.changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def add(self, core_id: str, request: Request) -> None:
        """Hand a request to the core before the next step, as ``core_id``."""
        self._inbox.add(core_id, replace(request, request_id=core_id))

    def cancel(self, core_id: str, choice: int | None) -> bool:
        """Stop computing before the next step, silently.

        False if the core had not heard of the request and never will; otherwise a report names it when it is done.
        """
        return self._inbox.cancel(core_id, choice)

    def call(self, function: Callable[[EngineCore], _T]) -> Future[_T]:
        """Run ``function`` between two steps. Raises ``TooManyCalls``."""
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
        """Of the last 100, seconds."""
        return max(self._step_seconds, default=0.0)

    @property
    def step_timeout(self) -> float:
        """Seconds that a step may take before the engine counts as hung."""
        return step_limit(self.longest_step, self.largest_step)

    @property
    def turn(self) -> int | None:
        """Counts what the thread does; None while it need not move. It is read from another thread."""
        return self._turns if (self._busy or self._inbox) and not self._in_call else None

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._turn()
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._failed, error)

    def _wait_for_work(self) -> bool:
        with self._inbox.changed:
            while not (self._inbox or self._stopping or self._core.has_work()):
                self._busy = False
                self._inbox.changed.wait()
            self._busy = True
            self._turns += 1
            return not self._stopping

    def _turn(self) -> None:
        report = StepReport([])
        # Those that come meanwhile have to wait: senders who never pause must not keep the steps from being computed.
        orders = self._inbox.take()
        for core_id, about in orders.requests.items():
            self._carry_out(core_id, about, report)
        for call in orders.calls:
            with self._unwatched():
                call()
        del orders  # not kept while the step is computed: what was cancelled is charged to nobody any more
        if self._core.has_work():
            self._step(report)
        self._refresh_stats()
        if report.outputs or report.refused or report.cancelled or report.tokens:
            self._loop.call_soon_threadsafe(self._report, report)

    def _carry_out(self, core_id: str, orders: RequestOrders, report: StepReport) -> None:
        if orders.request is not None:
            try:
                self._core.add(orders.request)
            except RequestError as error:
                report.refused.append((core_id, error))
                return
        for choice in orders.cancelled:
            self._core.cancel(core_id, choice, finish_reason=None)
            report.cancelled.append((core_id, choice))

    def _step(self, report: StepReport) -> None:
        before = self._core.computed_tokens
        start = time.perf_counter()
        report.outputs = self._core.step(self._tell_starting)
        report.tokens = self._core.computed_tokens - before
        if not report.tokens:
            return  # Choices ended without a step, or the first of overlapping steps has just been submitted.
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

    def _tell_starting(self, core_ids: list[str]) -> None:
        self._loop.call_soon_threadsafe(self._starting, core_ids)

    def _refresh_stats(self) -> None:
        now = time.monotonic()
        if now - self._stats_at >= _STATS_INTERVAL or not self._core.has_work():
            self._stats_at = now
            self.stats = self._core.stats()
