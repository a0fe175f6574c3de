"""The asyncio client's stream of one answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from ringline.errors import Cancelled, RingError
from ringline.outputs import Admitted, Usage
from ringline.results import Delta, Event, Generation
from ringline.retrying_request import RetryingRequest
from ringline.session_stream import Attempt

_T = TypeVar("_T")


class AsyncStream(AsyncIterator[Delta]):
    """One request's answer, delta by delta. ``close()`` and leaving the ``async with`` block cancel the request.

    So does dropping the last reference, as by leaving a loop early.
    """

    def __init__(
        self,
        begin: Callable[[RetryingRequest], Awaitable[Attempt]],
        any_available: Callable[[], bool],
        retrying: RetryingRequest,
    ) -> None:
        """``begin`` starts an attempt; ``any_available`` says whether some server is not ejected."""
        self._begin = begin
        self._another = any_available
        self._retrying = retrying
        self._attempt: Attempt | None = None
        self._failure: RingError | None = None
        self._closed = False
        self._wait: asyncio.Timeout | None = None
        """The timeout around a wait for the next attempt, which may be long; ``close`` expires it."""

    @property
    def request(self) -> Admitted | None:
        """The request as the server admitted it; None until then."""
        return self._retrying.reader.admitted

    @property
    def usage(self) -> Usage | None:
        """The request's token counts; None until it has ended."""
        return self._retrying.reader.usage

    async def events(self) -> AsyncIterator[Event]:
        """All events, not only deltas."""
        while (event := await self._next_event()) is not None:
            yield event

    async def result(self) -> Generation:
        """Wait for the end and return the whole answer. Raises the request's error; Cancelled if closed before."""
        while await self._next_event() is not None:
            pass
        reader = self._retrying.reader
        if not reader.done:
            raise reader.ended(Cancelled("the stream was closed"))
        return reader.generation()

    async def close(self) -> None:
        """Cancel the request if it has not ended."""
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
        if self._attempt is not None:
            self._attempt.cancel()
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def _next_event(self) -> Event | None:
        """The next event, over any number of attempts; None after the last. Raises the request's error."""
        while self._failure is None and not self._closed:
            try:
                attempt = self._attempt or await self._begin_attempt()
                if attempt is not None:
                    return await attempt.next_event()
            except RingError as error:
                if not self._closed:
                    await self._wait_to_retry(error)
        if self._failure is not None:
            raise self._failure
        return None

    async def _begin_attempt(self) -> Attempt | None:
        """The next attempt; None if the stream is closed before the attempt has begun."""
        attempt = self._attempt = await self._unless_closed(self._begin(self._retrying))
        if attempt is not None and self._closed:  # closed just as it began
            attempt.cancel()
        return attempt

    async def _wait_to_retry(self, error: RingError) -> None:
        try:
            delay = self._retrying.delay(error, any_available=self._another())
        except RingError as final:
            self._failure = final
            return
        self._attempt = None
        await self._unless_closed(asyncio.sleep(delay))

    async def _unless_closed(self, work: Awaitable[_T]) -> _T | None:
        """The result of ``work``; None if the stream is closed meanwhile, which cancels the work."""
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._wait = wait
                return await work
        except TimeoutError:
            if not wait.expired():
                raise  # the request's own timeout
            return None
        finally:
            self._wait = None
