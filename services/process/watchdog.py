"""Ends a process in which something hangs: a thread beside what it watches.

A hang is neither idleness (there is nothing to do) nor long work (each kind of work has its own limit). Time that the
watching thread missed, because its process or the machine stood still, does not count. So a process that is stopped as
a whole, or whose native code keeps Python's lock, cannot see that itself: whoever started it does
(``services.process.heartbeat``).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from services.config.errors import ExitCode

LOOK_INTERVAL = 0.25
"""Seconds between two looks."""
LAST_WORDS = 2.0
"""Seconds at most that a hanging process has to tell its peers and its log."""
_FRAMES = 20
"""Innermost frames of each thread that are told."""


class Stillness:
    """For how long something has not moved, by the eyes of one who looks at it regularly."""

    def __init__(self, interval: float) -> None:
        """``interval``: seconds between looks; where it becomes much more, the one who looks stood still."""
        self._most = 2 * interval
        self._mark: int | None = None
        self._looked_at: float | None = None
        self._still = 0.0

    def look(self, now: float, mark: int | None) -> float:
        """Seconds of stillness. ``mark`` is another after each move, and None while there is nothing to do."""
        missed = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if mark is None or mark != self._mark:
            self._mark, self._still = mark, 0.0
        else:
            self._still += min(missed, self._most)
        return self._still


class Watchdog:
    """A thread that looks at one thing, and ends the process when that does not move for too long."""

    def __init__(
        self,
        name: str,
        mark: Callable[[], int | None],
        limit: Callable[[], float],
        hung: Callable[[float, float], None],
        *,
        interval: float = LOOK_INTERVAL,
        last_words: float = LAST_WORDS,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """``mark`` is as for ``Stillness``; ``limit`` is how many seconds it may stay the same, now.

        ``hung(seconds, limit)`` tells whom it concerns, in a thread of its own, since it may hang in turn. When it has,
        or after ``last_words`` seconds, ``end`` is called with the process's exit code.
        """
        self._mark, self._limit, self._hung = mark, limit, hung
        self._interval, self._last_words, self._end = interval, last_words, end
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer. What was found to hang ends the process nevertheless."""
        self._stopping.set()

    def _run(self) -> None:
        stillness = Stillness(self._interval)
        while not self._stopping.wait(self._interval):
            seconds, limit = stillness.look(time.monotonic(), self._mark()), self._limit()
            if seconds > limit:
                telling = threading.Thread(target=self._hung, args=(seconds, limit), name="last words", daemon=True)
                telling.start()
                telling.join(self._last_words)
                self._end(ExitCode.FAILURE)
                return


def stacks() -> dict[str, list[str]]:
    """Where each thread is, the innermost frame last; for the log."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(ident, str(ident)): [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_stack(frame)[-_FRAMES:]
        ]
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }
