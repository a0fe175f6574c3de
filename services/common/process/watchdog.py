"""Detects a hang from inside: a thread ends the process when its event loop, or an engine's step, takes too long.

Neither idleness nor long work (each kind of work has its own limit) counts as a hang, nor does time in which the
watchdog itself did not run, because its process or the machine was stopped. So a process that is stopped as a whole, or
whose native code holds the GIL, is ended by its supervisor (``services.common.process.heartbeat``).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from services.common.config.errors import ExitCode

CHECK_INTERVAL = 0.25
"""Seconds between two checks."""
REPORT_TIMEOUT = 2.0
"""The most seconds that a hung process has to report the hang to its peers and its log."""
_FRAMES = 20
"""Innermost frames of each thread that ``thread_stacks`` reports."""


class StallTimer:
    """Measures how long a counter has not moved, from regular samples."""

    def __init__(self, interval: float) -> None:
        """``interval``: seconds between samples. A longer gap counts as at most two: the sampler did not run."""
        self._max_gap = 2 * interval
        self._progress: int | None = None
        self._sampled_at: float | None = None
        self._stalled = 0.0

    def update(self, now: float, progress: int | None) -> float:
        """Take a sample; returns seconds without progress.

        ``progress`` differs after each move, and is None while there is nothing to do.
        """
        gap = 0.0 if self._sampled_at is None else now - self._sampled_at
        self._sampled_at = now
        if progress is None or progress != self._progress:
            self._progress, self._stalled = progress, 0.0
        else:
            self._stalled += min(gap, self._max_gap)
        return self._stalled


class Watchdog:
    """Watches one progress counter, and ends the process when it does not change for too long."""

    def __init__(
        self,
        name: str,
        progress: Callable[[], int | None],
        limit: Callable[[], float],
        on_hang: Callable[[float, float], None],
        *,
        interval: float = CHECK_INTERVAL,
        report_timeout: float = REPORT_TIMEOUT,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """``progress`` as for ``StallTimer``; ``limit()``: seconds that it may stand still now.

        ``on_hang(seconds, limit)`` reports the hang, in a separate thread because it may hang, too. When it returns,
        or after ``report_timeout`` seconds, ``end`` is called with the process's exit code.
        """
        self._progress, self._limit, self._on_hang = progress, limit, on_hang
        self._interval, self._report_timeout, self._end = interval, report_timeout, end
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. A hang that was already detected still ends the process."""
        self._stopping.set()

    def _run(self) -> None:
        timer = StallTimer(self._interval)
        while not self._stopping.wait(self._interval):
            seconds, limit = timer.update(time.monotonic(), self._progress()), self._limit()
            if seconds > limit:
                report = threading.Thread(target=self._on_hang, args=(seconds, limit), name="hang report", daemon=True)
                report.start()
                report.join(self._report_timeout)
                self._end(ExitCode.FAILURE)
                return


def thread_stacks() -> dict[str, list[str]]:
    """Stack of every other thread for the log, keyed by the thread's name; innermost frame last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, str(ident)): [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_stack(frame)[-_FRAMES:]
        ]
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }
