"""The signs of life that a service gives: its event loop beats, for a thread beside it and for its supervisor.

A supervisor listens at the other end of a pipe (``services.runtime.pulse``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from services.runtime.pulse import INTERVAL, PIPE_VARIABLE, Phase
from services.runtime.watchdog import Watchdog, stacks

log = structlog.get_logger(__name__)

LOOP_LIMIT = 6.0
"""Seconds that an event loop may stand still: peers have given up the process after two."""


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
