"""Many requests over one stream: opens a link when one is needed, and another when it ends or drains."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, Unpack

from ringline.delivered import Admitted
from ringline.errors import Cancelled, RingError
from ringline.inference.v1 import inference_pb2 as pb
from ringline.link import Exchange, Link, SessionCall
from ringline.options import Message, Options
from ringline.request import build_request
from ringline.results import Delta, Event, Generation
from ringline.retry import Backoff, Deadline


class Session:
    """Any number of concurrent requests on one stream, which is opened at the first and reopened when it ends.

    More requests than the server allows at once wait for their turn. All must run on one event loop. Use as an async
    context manager, or ``close()`` it.
    """

    def __init__(
        self, call: Callable[[], SessionCall], *, timeout: float | None, retries: int, retry_overloaded: bool
    ) -> None:
        """``call`` begins a Session call; the rest is as in ``AsyncClient``, whose ``session()`` makes this."""
        self._call = call
        self._timeout = timeout
        self._retries = retries
        self._retry_overloaded = retry_overloaded
        self._names = itertools.count(1)
        self._links: list[Link] = []
        """The last one takes what is new; earlier ones finish what they have."""
        self._opening: asyncio.Task[Link] | None = None
        self._closed = False

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """The whole answer to a text, a conversation or token ids. Raises a RingError unless every choice ended well.

        What had been delivered by then is in the error's ``partial``.
        """
        async with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return await stream.result()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """The answer as it comes. The request is sent when the first delta is awaited."""
        timeout = options.pop("timeout", self._timeout)
        request = build_request(prompt, messages, token_ids, options)
        deadline = Deadline(timeout)
        return AsyncStream(self._begin, request, deadline, Backoff(self._retries, self._retry_overloaded, deadline))

    async def close(self) -> None:
        """End every request that is under way, and the stream."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for link in self._links:
            await link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _begin(self, request: pb.GenerateRequest, deadline: Deadline) -> Exchange:
        link = await self._link()
        return await link.begin(request, deadline)

    async def _link(self) -> Link:
        """The link that takes new requests. Those who wait for one to open wait together."""
        if self._closed:
            raise Cancelled("the session is closed")
        if self._links and self._links[-1].usable:
            return self._links[-1]
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except RingError as error:
            raise copy.copy(error) from None  # each who waited raises its own
        except asyncio.CancelledError:
            if opening.cancelled():
                raise Cancelled("the session was closed") from None
            raise

    async def _open(self) -> Link:
        try:
            link = await Link.open(self._call(), self._names)
        finally:
            self._opening = None
        self._links = [*(old for old in self._links if not old.ended), link]
        return link


class AsyncStream(AsyncIterator[Delta]):
    """One request's answer, delta by delta. Leaving the loop and ``close()`` cancel the request."""

    def __init__(
        self,
        begin: Callable[[pb.GenerateRequest, Deadline], Awaitable[Exchange]],
        request: pb.GenerateRequest,
        deadline: Deadline,
        backoff: Backoff,
    ) -> None:
        self._begin = begin
        self._request = request
        self._deadline = deadline
        self._backoff = backoff
        self._exchange: Exchange | None = None
        self._failure: RingError | None = None
        self._closed = False

    @property
    def request(self) -> Admitted | None:
        """The request as the server took it; None until it did."""
        return self._exchange.reader.admitted if self._exchange else None

    async def events(self) -> AsyncIterator[Event]:
        """All that happens, not deltas alone."""
        while (event := await self._next_event()) is not None:
            yield event

    async def result(self) -> Generation:
        """Wait for the end; the whole answer."""
        while await self._next_event() is not None:
            pass
        closed = Cancelled("the stream was closed")
        if self._exchange is None:
            raise closed
        if not self._exchange.reader.done:
            raise self._exchange.reader.ended(closed)
        return self._exchange.reader.generation()

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
                    self._exchange = await self._begin(self._request, self._deadline)
                return await self._exchange.next_event()
            except RingError as error:
                if not self._closed:
                    await self._wait_to_retry(error)
        if self._failure is not None:
            raise self._failure
        return None

    async def _wait_to_retry(self, error: RingError) -> None:
        try:
            await asyncio.sleep(self._backoff.delay(error))
            self._exchange = None
        except RingError as final:
            self._failure = final
