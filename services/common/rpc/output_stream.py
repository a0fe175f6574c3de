"""The writing side of a stream. A reader that reads nothing for the stall timeout, or too little, loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from services.common.rpc.handlers import Context
from services.common.rpc.open_calls import end_call_soon
from services.ring.errors import Code, Reason, Refused
from services.ring.outbox import Outboxes

_Message = TypeVar("_Message")


async def write_in_time(context: Context, message: Any, stall_timeout: float, *, reader: str = "client") -> None:
    """Write a message of a response stream.

    If that takes ``stall_timeout`` seconds, the call ends soon, and ``Refused`` is raised; it names the ``reader``.
    """
    try:
        async with asyncio.timeout(stall_timeout):
            await context.write(message)
    except TimeoutError:
        end_call_soon()
        problem = f"the {reader} read nothing for {stall_timeout:g} s, the limit"
        raise Refused(Code.RESOURCE_EXHAUSTED, problem, reason=Reason.STALLED) from None


class OutputStream:
    """The writing side of one stream. It ends when its reader reads nothing, or when too much waits for it."""

    def __init__(self, outboxes: Outboxes, tenant: str) -> None:
        """Waiting output is counted in ``outboxes``, for ``tenant``."""
        self._outboxes = outboxes
        self.wake = asyncio.Event()
        """Set when there is something to write, or the stream is to end."""
        self.outbox = outboxes.open(tenant, self._give_up, on_added=self.wake.set)
        self.given_up = False
        """Whether the reader was given up because too much output waited for it."""
        self._write: asyncio.Timeout | None = None
        """The timeout of the write in progress; None between writes."""

    # No generator-based context manager: from Python 3.12 on, a TimeoutError that it raises is kept in a cycle.
    async def write(self, send: Callable[[_Message], Awaitable[None]], message: _Message, stall_timeout: float) -> None:
        """Raises ``TimeoutError`` after ``stall_timeout`` seconds, or at once if the reader is given up."""
        self.check()
        async with asyncio.timeout(stall_timeout) as self._write:
            try:
                await send(message)
            finally:
                self._write = None

    def check(self) -> None:
        """Raise ``TimeoutError`` if the reader is given up."""
        if self.given_up:
            raise TimeoutError

    def stall_reason(self, stall_timeout: float) -> str:
        """Why the reader was given up, as human-readable text."""
        if self.given_up:
            return f"more than {self._outboxes.max_bytes} bytes wait, the limit for one reader"
        return f"nothing was read for {stall_timeout:g} s, the limit"

    def interrupt(self) -> None:
        """Wake the writer; a write in progress times out at once."""
        if self._write is not None:
            with suppress(RuntimeError):  # the timeout has just expired
                self._write.reschedule(asyncio.get_running_loop().time())
        self.wake.set()

    def clear(self) -> None:
        """Drop waiting output: the stream is over, but gRPC may keep the call until the reader takes its status."""
        self._outboxes.close(self.outbox)

    def _give_up(self) -> None:
        self.given_up = True
        self.interrupt()
