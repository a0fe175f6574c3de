"""A thread that computes steps one after the other, so that whoever submits them can plan the next one meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from engine_core.step import StepResult

Compute = Callable[[], StepResult]


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
