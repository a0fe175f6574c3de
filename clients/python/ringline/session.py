"""Many requests over one Session stream, opened when needed and replaced when it ends or drains."""

from __future__ import annotations

import asyncio
import copy
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from ringline.aio_stream import AsyncStream
from ringline.constraints import json_reader
from ringline.errors import Cancelled, DeadlineExceeded, RingError, Unavailable
from ringline.options import Message, Options
from ringline.request import build_request
from ringline.results import Generation
from ringline.retry import Deadline, RetryPolicy, RetryState
from ringline.retrying_request import RetryingRequest
from ringline.server_pool import Server, ServerPool
from ringline.session_stream import Attempt, SessionCall, SessionStream

_LEAST_SECONDS = 1.0
"""Minimum patience, in seconds, so that all servers are tried if they refuse at once."""


class Session:
    """Any number of concurrent requests on one stream, which opens with the first and reopens when it ends.

    Requests beyond the server's limit of live ones wait. All must run on one event loop. Use it as an async context
    manager, or ``close()`` it.
    """

    def __init__(
        self,
        pool: Callable[[], ServerPool[Any]],
        call: Callable[[Any], SessionCall],
        *,
        timeout: float | None,
        policy: RetryPolicy,
    ) -> None:
        """Made by ``AsyncClient.session()``; ``timeout`` and ``policy`` are documented at ``Client``.

        ``call`` starts a Session call on a connection of ``pool``, which belongs to the running event loop.
        """
        self._pool = pool
        self._call = call
        self._timeout = timeout
        self._policy = policy
        mine = secrets.token_hex(4)  # so that generated ids differ from callers' ids
        self._names = (f"{mine}-{number}" for number in itertools.count(1))
        self._session_streams: list[SessionStream] = []
        """New requests go to the last stream whose server works; the others finish their requests."""
        self._opening: asyncio.Task[SessionStream] | None = None
        self._closed = False

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """The whole answer to a text, a conversation or token ids.

        Raises a RingError unless every choice ended well; its ``partial`` holds what was delivered before.
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
        """The answer as it arrives. The request is sent when the first delta is awaited."""
        timeout = options.pop("timeout", self._timeout)
        request = build_request(prompt, messages, token_ids, options)
        deadline = Deadline(timeout)
        retrying = RetryingRequest(request, RetryState(self._policy, deadline), deadline, json_reader(options))
        return AsyncStream(self._begin, lambda: self._pool().any_available_but(retrying.avoid), retrying)

    async def close(self) -> None:
        """End every running request and the stream."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for session_stream in self._session_streams:
            await session_stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _begin(self, retrying: RetryingRequest) -> Attempt:
        try:
            while (attempt := await (await self._stream_in_time(retrying)).begin(retrying)) is None:
                pass  # that stream drains: try the next
            return attempt
        except RingError as error:
            raise retrying.reader.ended(error) from None

    async def _stream_in_time(self, retrying: RetryingRequest) -> SessionStream:
        """Like ``_usable_stream``. Raises DeadlineExceeded when the request's time has passed."""
        try:
            async with asyncio.timeout(retrying.deadline.remaining()):
                return await self._usable_stream(retrying.avoid)
        except TimeoutError:
            raise DeadlineExceeded("the timeout passed before a server opened the session") from None

    async def _usable_stream(self, avoid: Server[Any] | None) -> SessionStream:
        """The stream for new requests, to a server other than ``avoid`` if possible.

        Concurrent callers wait for the same stream to open.
        """
        if self._closed:
            raise Cancelled("the session is closed")
        usable = [session_stream for session_stream in self._session_streams if session_stream.usable]
        working = [session_stream for session_stream in usable if not session_stream.server.ejected]
        if others := [session_stream for session_stream in working if session_stream.server is not avoid]:
            return others[-1]
        if usable and not self._pool().any_available_but(avoid):
            return (working or usable)[-1]
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(avoid))
            self._opening.add_done_callback(_note_error)
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except RingError as error:
            raise copy.copy(error) from None  # each caller raises its own copy
        except asyncio.CancelledError:
            if opening.cancelled():
                raise Cancelled("the session was closed") from None
            raise

    async def _open(self, avoid: Server[Any] | None) -> SessionStream:
        try:
            session_stream = await self._open_somewhere(avoid)
        finally:
            self._opening = None
        others = (old for old in self._session_streams if not old.ended and old is not session_stream)
        self._session_streams = [*others, session_stream]
        return session_stream

    async def _open_somewhere(self, avoid: Server[Any] | None) -> SessionStream:
        """A stream to the first server that accepts one, or that has a usable one.

        If none does, raises the last server's error, or one that names every server if none was ever reached. A server
        that never answers takes seconds: past the policy's ``patience``, the remaining servers are not tried.
        """
        pool, began = self._pool(), time.monotonic()
        while True:
            server = pool.choose(avoid)
            for session_stream in self._session_streams:
                if session_stream.usable and session_stream.server is server:
                    return session_stream  # the other servers are gone, and only ``avoid`` is left
            try:
                with pool.using(server) as used:
                    return await SessionStream.open(used.keep(self._call(used.connection)), pool, server, self._names)
            except RingError as refusal:
                error = pool.attempt_failed(server, refusal, began)
                if not isinstance(error, Unavailable):
                    raise
                impatient = time.monotonic() - began >= max(self._policy.patience, _LEAST_SECONDS)
                if error.unreached is not None or impatient or (pool.reached and not pool.any_available):
                    raise error from None


def _note_error(opening: asyncio.Task[SessionStream]) -> None:
    """Retrieve the error, which asyncio would log if all callers have left."""
    if not opening.cancelled():
        opening.exception()
