"""One request's answer, as the asyncio client streams it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from ringline.course import Course
from ringline.delivered import Admitted
from ringline.errors import Cancelled, RingError
from ringline.link import Exchange
from ringline.results import Delta, Event, Generation


class AsyncStream(AsyncIterator[Delta]):
    """One request's answer, delta by delta. Leaving the loop and ``close()`` cancel the request."""

    def __init__(
        self, begin: Callable[[Course], Awaitable[Exchange]], another: Callable[[], bool], course: Course
    ) -> None:
        """``begin`` begins an attempt; ``another`` tells whether there is a server that works."""
        self._begin = begin
        self._another = another
        self._course = course
        self._exchange: Exchange | None = None
        self._failure: RingError | None = None
        self._closed = False

    @property
    def request(self) -> Admitted | None:
        """The request as the server took it; None until it did."""
        return self._course.reader.admitted

    async def events(self) -> AsyncIterator[Event]:
        """All that happens, not deltas alone."""
        while (event := await self._next_event()) is not None:
            yield event

    async def result(self) -> Generation:
        """Wait for the end; the whole answer."""
        while await self._next_event() is not None:
            pass
        reader = self._course.reader
        if not reader.done:
            raise reader.ended(Cancelled("the stream was closed"))
        return reader.generation()

    async def close(self) -> None:
        """Cancel the request, if it has not ended."""
        self._cancel()

    async def __anext__(self) -> Delta:
        while (event := await self._next_event()) is not None:
            if isinstance(event, Delta):
                return event
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cancel()

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop may be closed
            self._cancel()

    def _cancel(self) -> None:
        self._closed = True
        if self._exchange is not None:
            self._exchange.cancel()

    async def _next_event(self) -> Event | None:
        """The next event, over as many attempts as it takes; None after the last. Raises what it failed with."""
        while self._failure is None and not self._closed:
            try:
                if self._exchange is None:
                    self._exchange = await self._begin(self._course)
                return await self._exchange.next_event()
            except RingError as error:
                if not self._closed:
                    await self._wait_to_retry(error)
        if self._failure is not None:
            raise self._failure
        return None

    async def _wait_to_retry(self, error: RingError) -> None:
        try:
            await asyncio.sleep(self._course.delay(error, another=self._another()))
            self._exchange = None
        except RingError as final:
            self._failure = final
