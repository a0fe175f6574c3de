"""A stream that is written to: what waits for its reader, and how long its reader may keep a write waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from services.ring.outbox import Outboxes


class OutputStream:
    """A reader that takes nothing, or so little that too much waits for it, is lost: then its stream has to end."""

    def __init__(self, outboxes: Outboxes, tenant: str) -> None:
        """What waits is counted in ``outboxes``, as that of ``tenant``."""
        self._outboxes = outboxes
        self.outbox = outboxes.open(tenant, self._lose)
        self.wake = asyncio.Event()
        """Set when there is something to write, or the reader is lost."""
        self.lost = False
        """Whether more waited for the reader than may."""
        self._write: asyncio.Timeout | None = None
        """Of the write under way."""

    @asynccontextmanager
    async def writing(self, stall_timeout: float) -> AsyncIterator[None]:
        """Bounds one write: ``TimeoutError`` after ``stall_timeout`` seconds, and at once when the reader is lost."""
        self.check()
        async with asyncio.timeout(stall_timeout) as self._write:
            try:
                yield
            finally:
                self._write = None

    def check(self) -> None:
        """Raise ``TimeoutError`` if the reader is lost."""
        if self.lost:
            raise TimeoutError

    def stall(self, stall_timeout: float) -> str:
        """Why its reader is lost, for a person."""
        if self.lost:
            return f"more waits than may, which is {self._outboxes.max_bytes} bytes for one reader"
        return f"nothing was taken for {stall_timeout:g} s"

    def clear(self) -> None:
        """The stream is over: forget what waits, for gRPC may keep the call until the reader takes its status."""
        self._outboxes.close(self.outbox)

    def _lose(self) -> None:
        self.lost = True
        self.interrupt()

    def interrupt(self) -> None:
        """Wake the writer; the write under way ends as if its time were over."""
        if self._write is not None:
            with suppress(RuntimeError):  # its time has just passed
                self._write.reschedule(asyncio.get_running_loop().time())
        self.wake.set()
