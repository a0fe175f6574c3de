"""A thread that computes calls whole: an interrupt reaches who waits for a call, and never what it is in the middle of.

Python raises ``KeyboardInterrupt``, and whatever other handlers of signals raise, in the main thread, between any two
of its instructions. A step cut off there would leave a scheduler and a batch that contradict each other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_WAIT = 0.1
"""Seconds after which a caller looks for signals again."""


class _EndedError(RuntimeError):
    """A call was asked for too late."""

    def __init__(self) -> None:
        super().__init__("it is closed")


@dataclass(slots=True)
class Call:
    """What a call under way is told."""

    interrupted: bool = False
    """Nobody waits for its result any more: it should put things in order and return."""


@dataclass(slots=True)
class _Order:
    """A call that was asked for. Its outcome comes through a queue, whose methods signals do not cut off either."""

    work: Callable[[Call], Any]
    call: Call = field(default_factory=Call)
    outcome: SimpleQueue[tuple[Any, BaseException | None]] = field(default_factory=SimpleQueue)


class CallThread:
    """Computes calls one after the other, whichever threads they are from."""

    def __init__(self, name: str) -> None:
        """The thread begins to wait for calls. It ends with this object, and does not keep the process from ending."""
        orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._orders = orders
        self._thread = threading.Thread(target=_run, args=(orders,), name=name, daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, orders.put, None)

    def call(self, work: Callable[[Call], T]) -> T:
        """What ``work`` returns or raises.

        Where the caller is interrupted, ``work`` is told, and the interrupt goes on when it has returned. A second one
        goes on at once; calls after it still wait for ``work``. Raises ``RuntimeError`` once this is closed.
        """
        if not self._end.alive:
            raise _EndedError
        order = _Order(work)
        try:
            self._orders.put(order)
            result, error = self._outcome(order)
        except BaseException:
            order.call.interrupted = True
            last = _Order(lambda call: None)  # for it may be that ``order`` was not even put
            self._orders.put(last)
            with suppress(_EndedError):
                self._outcome(last)
            raise
        if error is not None:
            raise error
        answer: T = result
        return answer

    def close(self) -> None:
        """Wait until the call under way has returned, and end the thread. Idempotent."""
        self._end()
        self._thread.join()

    def _outcome(self, order: _Order) -> tuple[Any, BaseException | None]:
        """What came of ``order``. A signal that comes just before a wait does not end that one, so each is short.

        The thread may have ended before it came to ``order``: others close it, and a forked process does not have it.
        """
        while True:
            ended = not self._thread.is_alive()
            try:
                return order.outcome.get(timeout=0.0 if ended else _WAIT)
            except Empty:
                if ended:
                    raise _EndedError from None


def _run(orders: SimpleQueue[_Order | None]) -> None:
    while (order := orders.get()) is not None:
        try:
            order.outcome.put((order.work(order.call), None))
        except BaseException as error:
            order.outcome.put((None, error))
        del order  # what a call holds is not kept until the next one
