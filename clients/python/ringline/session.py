"""Many requests over one stream: opens a link when one is needed, and another when it ends or drains."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from ringline.aio_stream import AsyncStream
from ringline.course import Course
from ringline.errors import Cancelled, RingError, Unavailable
from ringline.link import Exchange, Link, SessionCall
from ringline.options import Message, Options
from ringline.request import build_request
from ringline.results import Generation
from ringline.retry import Attempts, Deadline, RetryPolicy
from ringline.servers import Servers


class Session:
    """Any number of concurrent requests on one stream, which is opened at the first and reopened when it ends.

    More requests than the server allows at once wait for their turn. All must run on one event loop. Use as an async
    context manager, or ``close()`` it.
    """

    def __init__(
        self,
        servers: Callable[[], Servers[Any]],
        call: Callable[[Any], SessionCall],
        *,
        timeout: float | None,
        policy: RetryPolicy,
    ) -> None:
        """``call`` begins a Session call at one of ``servers``, which belong to the running event loop.

        The rest is as in ``AsyncClient``, whose ``session()`` makes this.
        """
        self._servers = servers
        self._call = call
        self._timeout = timeout
        self._policy = policy
        self._names = itertools.count(1)
        self._links: list[Link] = []
        """The last one at a server that works takes what is new; others finish what they have."""
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
        course = Course(request, Attempts(self._policy, deadline), deadline)
        return AsyncStream(self._begin, lambda: self._servers().another, course)

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

    async def _begin(self, course: Course) -> Exchange:
        try:
            while (exchange := await (await self._link()).begin(course)) is None:
                pass  # that link was to take nothing more
            return exchange
        except RingError as error:
            raise course.reader.ended(error) from None

    async def _link(self) -> Link:
        """The link that takes new requests. Those who wait for one to open wait together."""
        if self._closed:
            raise Cancelled("the session is closed")
        usable = [link for link in self._links if link.usable]
        working = [link for link in usable if not link.server.avoided]
        if working or (usable and not self._servers().another):
            return (working or usable)[-1]
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
            link = await self._open_somewhere()
        finally:
            self._opening = None
        self._links = [*(old for old in self._links if not old.ended), link]
        return link

    async def _open_somewhere(self) -> Link:
        """A link to the first server that takes it; raise what the last one said."""
        servers = self._servers()
        while True:
            server = servers.choose()
            try:
                with servers.using(server) as used:
                    return await Link.open(used.keep(self._call(used.connection)), servers, server, self._names)
            except Unavailable:
                servers.failed(server)
                if not servers.another:
                    raise
