"""Load on servers whose protocol has one call per request, like the peers' protocols."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from typing import NoReturn

from services.cli.bench.load_stream import LoadStream, Target

UNKNOWN_TARGET = Target(model="", vocab_size=0, max_model_len=0, eos_token_ids=frozenset(), max_live_requests=None)
"""The target for servers that do not describe their model."""


class PerRequestLoadStream(LoadStream):
    """Sends each request in its own task."""

    def __init__(self) -> None:
        super().__init__()
        self._outbox: deque[int] = deque()
        self._failed: asyncio.Future[NoReturn] | None = None
        self._running: set[asyncio.Task[None]] = set()

    def send(self, number: int) -> None:
        self._outbox.append(number)
        self._pending.set()

    @abstractmethod
    async def _request(self, number: int) -> None:
        """Send a prepared request, and pass its output to the listener."""

    async def _write(self) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            while self._outbox:
                task = asyncio.create_task(self._request(self._outbox.popleft()))
                self._running.add(task)
                task.add_done_callback(self._ended)

    async def _read(self) -> None:
        self._failed = asyncio.get_running_loop().create_future()
        await self._failed

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
