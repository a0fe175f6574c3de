"""Ends an engine whose start makes no progress, naming the stage. For an engine of one process: calls of ranks have
limits of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine_core.progress import Stage
from services.common.process.watchdog import Watchdog


class StageClock:
    """A ``StartupObserver`` that counts the steps of a start."""

    def __init__(self) -> None:
        self.steps = 0
        """Stages begun and finished, and reports of progress within them."""
        self.stage = ""
        """The last stage that began."""

    def stage_started(self, stage: Stage) -> None:
        self.stage = stage.name
        self.steps += 1

    def stage_advanced(self, stage: Stage, done: int, total: int) -> None:
        self.steps += 1

    def stage_finished(self, stage: Stage) -> None:
        self.steps += 1


@contextmanager
def start_limit(clock: StageClock, seconds: float, report: Callable[[str], None]) -> Iterator[None]:
    """End the process if ``clock`` stands still for ``seconds`` while the block runs, after a ``report`` of why."""

    def stalled(waited: float, limit: float) -> None:
        report(f"the stage {clock.stage!r} of the start made no progress within --worker-start-timeout={limit:g} s")

    watchdog = Watchdog("start watchdog", lambda: clock.steps, lambda: seconds, stalled)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
