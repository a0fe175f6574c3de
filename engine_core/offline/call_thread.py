"""A thread that runs calls to completion: an interrupt reaches the waiting caller, never the work in progress.

Python raises ``KeyboardInterrupt``, and the exceptions of other signal handlers, in the main thread, between any two of
its instructions. A step interrupted there would leave the scheduler and the batch inconsistent.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from engine_core.errors import ClosedError

T = TypeVar("T")
_WAIT = 0.1
"""Seconds between a waiting caller's checks for signals."""


@dataclass(slots=True)
class Call:
    """Passed to the work of a call, which may check it while it runs."""

    interrupted: bool = False
    """The caller no longer waits for the result: the work should clean up and return."""


@dataclass(slots=True)
class _Order:
    """A queued call. Its outcome is passed through a ``SimpleQueue``, whose methods signals cannot interrupt."""

    work: Callable[[Call], Any]
    call: Call = field(default_factory=Call)
    outcome: SimpleQueue[tuple[Any, BaseException | None]] = field(default_factory=SimpleQueue)


class CallThread:
    """Runs calls one after another. Thread-safe."""

    def __init__(self, name: str) -> None:
        """Start the daemon thread. It ends at ``close``, or when this object is garbage-collected."""
        orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._orders = orders
        self._thread = threading.Thread(target=_run, args=(orders,), name=name, daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, orders.put, None)

    def call(self, work: Callable[[Call], T]) -> T:
        """Run ``work`` in the thread; return its result, or raise its exception.

        If the caller is interrupted, ``Call.interrupted`` is set, and the interrupt is raised when ``work`` has ended.
        A second one is raised at once; later calls still wait for ``work``. Raises ``ClosedError`` after ``close``.
        """
        if not self._end.alive:
            raise ClosedError
        order = _Order(work)
        try:
            self._orders.put(order)
            result, error = self._outcome(order)
        except BaseException:
            order.call.interrupted = True
            last = _Order(lambda call: None)  # the interrupt may have come before ``order`` was put
            self._orders.put(last)
            with suppress(ClosedError):
                self._outcome(last)
            raise
        if error is not None:
            raise error
        answer: T = result
        return answer

    def close(self) -> None:
        """Wait until the call in progress has returned, and end the thread. Idempotent.

        Called from the thread itself, which may hold the last reference to its owner, it does not wait.
        """
        self._end()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _outcome(self, order: _Order) -> tuple[Any, BaseException | None]:
        """Wait for the outcome, in short waits: a signal that arrives just before a wait does not end it.

        The thread may have ended before it ran ``order``: another thread closed it, or this process was forked.
        """
        while True:
            ended = not self._thread.is_alive()
            try:
                return order.outcome.get(timeout=0.0 if ended else _WAIT)
            except Empty:
                if ended:
                    raise ClosedError from None


def _run(orders: SimpleQueue[_Order | None]) -> None:
    while (order := orders.get()) is not None:
        outcome, ended = order.outcome, _ended(order)
        del order  # the call's objects must not outlive it here: its caller may hold the only other reference
        outcome.put(ended)
        del outcome, ended


def _ended(order: _Order) -> tuple[Any, BaseException | None]:
    try:
        return order.work(order.call), None
    except BaseException as error:
        return None, error
