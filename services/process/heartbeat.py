"""Heartbeats of a service, for a thread beside it and for its supervisor, and how a supervisor listens to them."""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from services.config.environment import PARENT_VARIABLE, PIPE_VARIABLE
from services.process.watchdog import Stillness, Watchdog, stacks

INTERVAL = 0.5
"""Seconds between beats, and between two looks at them."""
log = structlog.get_logger(__name__)
LOOP_LIMIT = 6.0
"""Seconds that an event loop may stand still: peers have given up the process after two."""


class Phase(enum.Enum):
    """What a process is doing."""

    STARTING = b"s"
    RUNNING = b"r"
    ENDING = b"e"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds without a beat after which a process is believed to hang, by what it was doing."""

    starting: float = 120.0
    """From its birth: libraries are imported before the first beat, and large files are read."""
    running: float = 8.0
    ending: float = 30.0

    def of(self, phase: Phase) -> float:
        """The limit of a phase."""
        return {Phase.STARTING: self.starting, Phase.RUNNING: self.running, Phase.ENDING: self.ending}[phase]


LIMITS = Limits()


class Pulse:
    """The beats of one life of a child, at the end of those who started it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._reading, self.writing = os.pipe()
        """``writing`` is for the child, and to be closed here once it is born."""
        for end in (self._reading, self.writing):
            os.set_blocking(end, False)  # a child must not wait for a parent that does not look
        self._stillness = Stillness(INTERVAL)
        self._beats = 0
        self._phase = Phase.STARTING

    def environment(self) -> dict[str, str]:
        """What the child must find in its environment beside the pipe's open end."""
        return {PARENT_VARIABLE: str(os.getpid()), PIPE_VARIABLE: str(self.writing)}

    def look(self, now: float) -> str | None:
        """Why the child is believed to hang, if it is. Call every ``INTERVAL``."""
        with suppress(BlockingIOError):
            while beats := os.read(self._reading, 4096):
                self._beats += len(beats)
                self._phase = Phase(beats[-1:])
        silence = self._stillness.look(now, self._beats)
        return f"it gave no sign of life for {silence:.1f} s" if silence > self._limits.of(self._phase) else None

    def close(self) -> None:
        """The child is gone."""
        os.close(self._reading)


@asynccontextmanager
async def heartbeat(running: Callable[[], bool], *, loop_limit: float = LOOP_LIMIT) -> AsyncIterator[None]:
    """While it is open, the event loop beats: for the parent, if that listens, and for a thread that ends the process.

    ``running()`` says whether the process has finished starting; ``loop_limit`` is in seconds.
    """
    pipe = _inherited_pipe()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            _tell(pipe, Phase.RUNNING if running() else Phase.STARTING)
            await asyncio.sleep(INTERVAL)

    watchdog = Watchdog("loop watchdog", lambda: beats, lambda: loop_limit, _loop_hangs)
    beating = asyncio.create_task(beat())
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
        beating.cancel()
        _tell(pipe, Phase.ENDING)


def _loop_hangs(seconds: float, limit: float) -> None:
    log.critical("the event loop hangs", seconds=round(seconds, 1), limit=limit, stacks=stacks())


def _inherited_pipe() -> int | None:
    """The pipe to beat into; children of this process are not to have it."""
    number = os.environ.pop(PIPE_VARIABLE, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def _tell(pipe: int | None, phase: Phase) -> None:
    if pipe is not None:
        with suppress(OSError):  # nobody looks: the pipe is full, or the parent is gone
            os.write(pipe, phase.value)
