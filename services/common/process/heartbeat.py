"""Detects hangs from outside: the event loop writes beats to a pipe, and the supervisor kills a process without them.

No detector sees everything, so there are two more: a ``watchdog`` thread in the process can log where it hangs, but
stops with it; peers merely stop sending it work (``services.ring.liveness``).
"""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from services.common.config.variable_names import HEARTBEAT_PIPE_VARIABLE, PARENT_PID_VARIABLE
from services.common.process.watchdog import StallTimer, Watchdog, thread_stacks

log = structlog.get_logger(__name__)

HEARTBEAT_INTERVAL = 0.5
"""Seconds between heartbeats, and between the supervisor's checks."""
LOOP_STALL_LIMIT = 6.0
"""Seconds that an event loop may be blocked. (Peers suspect the process after two.)"""


class Phase(enum.Enum):
    """What the process is doing; the value is the byte of a beat."""

    STARTING = b"s"
    RUNNING = b"r"
    ENDING = b"e"


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """Seconds without a beat after which a process counts as hung, by the phase of its last beat."""

    starting: float = 120.0
    """Counted from the fork until the first beat. Libraries are imported before that beat, large files read after."""
    running: float = 8.0
    ending: float = 30.0

    def of(self, phase: Phase) -> float:
        return {Phase.STARTING: self.starting, Phase.RUNNING: self.running, Phase.ENDING: self.ending}[phase]


HEARTBEAT_LIMITS = HeartbeatLimits()


@asynccontextmanager
async def heartbeat(running: Callable[[], bool], *, loop_limit: float = LOOP_STALL_LIMIT) -> AsyncIterator[None]:
    """Beat on the event loop while the block runs, for the supervisor, if any, and for a watchdog thread.

    ``running()`` returns whether the process has finished starting. The watchdog ends the process when the loop is
    blocked for ``loop_limit`` seconds.
    """
    pipe = _inherited_pipe()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            _write_beat(pipe, Phase.RUNNING if running() else Phase.STARTING)
            await asyncio.sleep(HEARTBEAT_INTERVAL)

    watchdog = Watchdog("loop watchdog", lambda: beats, lambda: loop_limit, _log_hung_loop)
    beating = asyncio.create_task(beat())
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
        beating.cancel()
        _write_beat(pipe, Phase.ENDING)


def _log_hung_loop(seconds: float, limit: float) -> None:
    log.critical("the event loop hangs", seconds=round(seconds, 1), limit=limit, stacks=thread_stacks())


def _inherited_pipe() -> int | None:
    """The pipe to write beats to, if a supervisor opened one; children of this process do not inherit it."""
    number = os.environ.pop(HEARTBEAT_PIPE_VARIABLE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def _write_beat(pipe: int | None, phase: Phase) -> None:
    if pipe is not None:
        with suppress(OSError):  # the pipe is full because the supervisor does not read, or the supervisor is gone
            os.write(pipe, phase.value)


class HeartbeatMonitor:
    """The supervisor's end of one child's heartbeat pipe."""

    def __init__(self, limits: HeartbeatLimits) -> None:
        self._limits = limits
        self._reading, self.writing = os.pipe()
        """The child inherits ``writing``; close it here once the child is started."""
        for end in (self._reading, self.writing):
            os.set_blocking(end, False)  # a child must not wait for a supervisor that does not read
        self._timer = StallTimer(HEARTBEAT_INTERVAL)
        self._beats = 0
        self._phase = Phase.STARTING

    def environment(self) -> dict[str, str]:
        """Variables that the child needs besides the pipe's open end."""
        return {PARENT_PID_VARIABLE: str(os.getpid()), HEARTBEAT_PIPE_VARIABLE: str(self.writing)}

    def check(self, now: float) -> str | None:
        """Why the child counts as hung; None if it does not.

        Call every ``HEARTBEAT_INTERVAL``; ``now`` is monotonic seconds.
        """
        with suppress(BlockingIOError):
            while beats := os.read(self._reading, 4096):
                self._beats += len(beats)
                self._phase = Phase(beats[-1:])
        silence = self._timer.update(now, self._beats)
        return f"it gave no sign of life for {silence:.1f} s" if silence > self._limits.of(self._phase) else None

    def close(self) -> None:
        """Call when the child has ended."""
        os.close(self._reading)
