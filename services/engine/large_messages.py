"""Large messages one at a time: measured and parsed off the event loop, and held while they are carried out.

Parsing holds the interpreter's lock. So after each message there is a rest as long as its parsing took: without that a
flood of large messages would leave little of the lock to the threads that compute and that answer everybody else.
Smaller messages go first, but none waits for ever: each is due some time after it came, which grows with its size, and
the one that is due first is next.
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

_DUE_PER_MIB, _LATEST_DUE = 60.0, 60.0
"""Seconds."""


class LargeMessages:
    """Whose large message is handled, and whose is next."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        """A heap: when they are due, their numbers, and what tells them that it is their turn; some are cancelled."""
        self._num_cancelled = 0
        """Since these were last taken out."""
        self._numbers = count()
        self._work: asyncio.Future[Any] | None = None
        """Of whoever has the turn."""
        self._work_seconds = 0.0

    @asynccontextmanager
    async def turn(self, num_bytes: int) -> AsyncIterator[None]:
        """Inside, nobody else handles a large message; this one has so many bytes."""
        await self._wait(num_bytes)
        try:
            yield
        finally:
            if self._work is None or self._work.done():
                self._rest()
            else:  # who asked for it was cancelled, but a thread goes on to its end
                self._work.add_done_callback(lambda _: self._rest())

    async def run(self, work: Callable[[], _R]) -> _R:
        """Do ``work`` off the event loop. Call it inside of a turn."""
        return await asyncio.shield(self._begin(work))  # in no variable: an error in it would refer to this frame

    def _begin(self, work: Callable[[], _R]) -> asyncio.Future[_R]:
        begun = asyncio.get_running_loop().run_in_executor(None, self._timed, work)
        begun.add_done_callback(_see)
        self._work = begun
        return begun

    async def _wait(self, num_bytes: int) -> None:
        if not self._taken:
            self._taken = True
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + min(_DUE_PER_MIB * num_bytes / (1 << 20), _LATEST_DUE)
        told = loop.create_future()
        heapq.heappush(self._waiting, (due, next(self._numbers), told))
        try:
            await told
        except asyncio.CancelledError:
            if told.cancelled():
                self._take_out_cancelled()
            else:  # the turn had come
                self._next()
            raise

    def _take_out_cancelled(self) -> None:
        """Once they may be more than the others."""
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

    def _rest(self) -> None:
        seconds, self._work_seconds, self._work = self._work_seconds, 0.0, None
        asyncio.get_running_loop().call_later(seconds, self._next)

    def _next(self) -> None:
        while self._waiting:
            told = heapq.heappop(self._waiting)[2]
            if not told.cancelled():
                told.set_result(None)
                return
        self._taken = False


def _see(work: asyncio.Future[_R]) -> None:
    """If who asked for it has gone, nobody else looks at its exception, and asyncio would log that."""
    if not work.cancelled():
        work.exception()
