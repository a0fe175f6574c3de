"""Large messages take turns: only one at a time is parsed (off the event loop) and held while it is executed.

Parsing holds the interpreter's lock. A pause as long as the parsing follows each message, so that a flood of large
messages leaves at least half of the lock to the step loop and the event loop. Smaller messages go first, but none
starves: deadlines grow with size, and the earliest deadline is served next.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

_R = TypeVar("_R")

_DEADLINE_PER_MIB, _LATEST_DEADLINE = 60.0, 60.0
"""Seconds added to a message's deadline per MiB, and their maximum."""


class LargeMessages:
    """Hands out turns by earliest deadline."""

    def __init__(self) -> None:
        self._busy = False
        """Whether a turn is held, or the pause after one lasts."""
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        """A heap of (deadline, tie-breaker, granted); cancelled futures stay in it until swept."""
        self._num_cancelled = 0
        """Waiters cancelled since the last sweep."""
        self._numbers = count()
        self._work: asyncio.Future[Any] | None = None
        """The work of the current turn."""
        self._work_seconds = 0.0

    @asynccontextmanager
    async def turn(self, num_bytes: int) -> AsyncIterator[None]:
        """Hold the turn for a message of ``num_bytes``; only one turn is held at a time."""
        await self._wait(num_bytes)
        try:
            yield
        finally:
            if self._work is None or self._work.done():
                self._pause()
            else:  # the caller was cancelled, but its work in a thread is not finished
                self._work.add_done_callback(lambda _: self._pause())

    async def run(self, work: Callable[[], _R]) -> _R:
        """Do ``work`` off the event loop. Call it while holding the turn."""
        return await asyncio.shield(self._begin(work))  # a variable would make a cycle: error, traceback, this frame

    def _begin(self, work: Callable[[], _R]) -> asyncio.Future[_R]:
        begun = asyncio.get_running_loop().run_in_executor(None, self._timed, work)
        begun.add_done_callback(_retrieve_exception)
        self._work = begun
        return begun

    async def _wait(self, num_bytes: int) -> None:
        if not self._busy:
            self._busy = True
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(_DEADLINE_PER_MIB * num_bytes / (1 << 20), _LATEST_DEADLINE)
        granted = loop.create_future()
        heapq.heappush(self._waiting, (deadline, next(self._numbers), granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._sweep_cancelled()
            else:  # cancelled after the turn was granted
                self._next()
            raise

    def _sweep_cancelled(self) -> None:
        """Remove cancelled entries once they may be more than half of the heap."""
        self._num_cancelled += 1
        if 2 * self._num_cancelled > len(self._waiting):
            self._waiting = [one for one in self._waiting if not one[2].cancelled()]
            heapq.heapify(self._waiting)
            self._num_cancelled = 0

    def _timed(self, work: Callable[[], _R]) -> _R:
        start = time.thread_time()
        try:
            return work()
        finally:
            self._work_seconds = time.thread_time() - start

    def _pause(self) -> None:
        seconds, self._work_seconds, self._work = self._work_seconds, 0.0, None
        asyncio.get_running_loop().call_later(seconds, self._next)

    def _next(self) -> None:
        while self._waiting:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.cancelled():
                granted.set_result(None)
                return
        self._busy = False


def _retrieve_exception(work: asyncio.Future[_R]) -> None:
    """Keep asyncio from logging an exception that is not retrieved because the caller was cancelled."""
    if not work.cancelled():
        work.exception()
