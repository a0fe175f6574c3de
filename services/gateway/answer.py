"""Asks the ring: one request, or several at once whose events come merged."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Self, TypeVar

from ringline import (
    Admitted,
    AsyncStream,
    Delta,
    Event,
    Finished,
    Generation,
    Message,
    Options,
    Resumed,
    Started,
    Usage,
)
from ringline.errors import Cancelled, ProtocolError, invalid
from ringline.options import TokenizeOptions
from ringline.relay import Relay
from ringline.request import build_tokenize
from ringline.results import Tokenization, tokenization_from

from services.gateway.http.call import Call, types_checked

MAX_ID_CHARACTERS = 90
"""Of the caller's request id in the ring's, which has room for what makes it unique."""
MAX_LOGPROBS = 512 << 10
"""Of an answer that is sent as a whole: tokens and alternatives, over all choices. As JSON they take 36 MiB."""
MAX_PROMPT_COPIES = 4 << 20
"""Tokens of the prompts that an answer repeats, over all choices. As ids they take some 24 MiB."""
_LOGPROBS_LIMIT = (
    f"expected at most {MAX_LOGPROBS}, alternatives counted; ask for fewer tokens, choices or alternatives"
)
_QUEUED_EVENTS = 64
"""Of several requests, until they are taken; the others wait in the client library."""

_T = TypeVar("_T")
_Queue = asyncio.Queue[tuple[int, Event | None, Exception | None]]
"""Of events with the index of their ask; of an ask's end, without or with the error that ended it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the ring; exactly one of the prompts is set."""

    options: Options
    prompt: str | None = None
    messages: Sequence[Message] | None = None
    token_ids: Sequence[int] | None = None
    prompt_copies: int = 1
    """How often the answer has what it tells of the prompt: once in all, or in each choice."""


class Answer:
    """The answers to the asks of one call, each of which an engine computes. ``close`` ends what has not ended."""

    def __init__(
        self,
        call: Call,
        streams: Sequence[AsyncStream],
        events: Sequence[AsyncIterator[Event]],
        first: Event | None,
        *,
        whole: bool,
    ) -> None:
        """Made by ``begin``: ``first`` event of the first ask, if it was taken, and the ``events`` after that."""
        self._call = call
        self._streams = streams
        self._events = events
        self._first = first
        self._whole = whole
        self._closed = False

    @classmethod
    async def begin(cls, call: Call, asks: Sequence[Ask], *, whole: bool = False) -> Self:
        """``whole``: the answers are kept until they have ended, and so may have only so many log probabilities.

        The answers once every ask is admitted, and the first begun; else cancels all and raises the first error.

        Not as soon as it is admitted: a full engine refuses after that, and the refusal must keep its status. But not
        when all have begun either: of many, the last may wait until the first have ended.
        """
        if whole:
            _check_logprobs(asks)
        streams = await call.aside(lambda: [_stream(call, ask) for ask in asks])
        events = [stream.events() for stream in streams]
        waiting: list[asyncio.Future[None]] = []
        try:
            if len(events) == 1:
                await _wait_for_admission(events[0])
            else:
                waiting = [asyncio.ensure_future(_wait_for_admission(one)) for one in events]
                await asyncio.gather(*waiting)
            _check_prompts(asks, streams)
            return cls(call, streams, events, await _wait_for_start(events[0]), whole=whole)
        except BaseException:
            for task in waiting:
                task.cancel()
            for stream in streams:
                await stream.close()
            await asyncio.gather(*waiting, return_exceptions=True)
            raise

    @property
    def admitted(self) -> Sequence[Admitted]:
        """Each ask as the ring admitted it."""
        return [request for stream in self._streams if (request := stream.request) is not None]

    async def events(self) -> AsyncGenerator[tuple[int, Event], None]:
        """The events after Admitted, each with the index of its ask. Raises the RingError of the first that fails."""
        logprobs = 0
        async with aclosing(self._merged()) as events:
            async for index, event in events:
                if self._whole and isinstance(event, Delta) and event.logprobs:
                    logprobs += len(event.logprobs) * (1 + len(event.logprobs[0].top))
                    if logprobs > MAX_LOGPROBS:
                        raise invalid("logprobs", f"the answer has too many: {_LOGPROBS_LIMIT}")
                yield index, event

    async def _merged(self) -> AsyncGenerator[tuple[int, Event], None]:
        if self._first is not None:
            yield 0, self._first
        if len(self._events) == 1:
            async for event in self._events[0]:
                yield 0, event
            return
        queue: _Queue = asyncio.Queue(_QUEUED_EVENTS)
        feeding = [asyncio.create_task(_feed(queue, index, events)) for index, events in enumerate(self._events)]
        try:
            left = len(feeding)
            while left:
                index, news, error = await queue.get()
                if error is not None:
                    raise error
                if news is None:
                    left -= 1
                else:
                    yield index, news
        finally:
            for task in feeding:
                task.cancel()

    async def generations(self) -> Sequence[Generation]:
        """The whole answer to each ask. Raises the RingError of the first that failed."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        results = [asyncio.ensure_future(stream.result()) for stream in self._streams]
        try:
            return await asyncio.gather(*results)
        finally:
            for one in results:
                one.cancel()

    async def needing(self, work: Awaitable[_T]) -> _T:
        """What ``work`` returns, without which there is nothing to answer: if it fails, so do the asks."""
        try:
            return await work
        except BaseException:
            await self.close()
            raise

    @property
    def usage(self) -> Usage:
        """Of all asks together, once they have ended."""
        each = [usage for stream in self._streams if (usage := stream.usage) is not None]
        return Usage(
            sum(one.prompt_tokens for one in each),
            sum(one.cached_tokens for one in each),
            sum(one.completion_tokens for one in each),
            sum(one.reasoning_tokens for one in each),
        )

    async def close(self) -> None:
        """Cancel every ask that has not ended, and count the tokens of the others."""
        if not self._closed:
            self._closed, used = True, self.usage
            self._call.tokens.prompt += used.prompt_tokens
            self._call.tokens.output += used.completion_tokens
        for stream in self._streams:
            await stream.close()

    aclose = close
    """For ``contextlib.aclosing``."""


def _check_logprobs(asks: Sequence[Ask]) -> None:
    """Refuse what could not be answered in the end: of a whole answer, log probabilities take 70 bytes each."""
    count = 0
    for ask in asks:
        top, tokens = ask.options.get("logprobs"), ask.options.get("max_tokens")
        if top is not None and tokens is not None:
            count += max(1, ask.options.get("n") or 1) * max(0, tokens) * (1 + max(0, top))
    if count > MAX_LOGPROBS:
        raise invalid("logprobs", f"{count} may come for all tokens and choices: {_LOGPROBS_LIMIT}")


def _check_prompts(asks: Sequence[Ask], streams: Sequence[AsyncStream]) -> None:
    """The same for prompts, whose tokens are known as soon as they are admitted; a stream, too, has them at once."""
    repeated = count = 0
    for ask, stream in zip(asks, streams, strict=True):
        tokens = 0 if stream.request is None else stream.request.prompt_tokens * ask.prompt_copies
        repeated += tokens if ask.prompt_copies > 1 else 0
        if (top := ask.options.get("prompt_logprobs")) is not None:
            count += tokens * (1 + top)
    if count > MAX_LOGPROBS:
        raise invalid("prompt_logprobs", f"{count} would come for all prompts and choices: {_LOGPROBS_LIMIT}")
    if repeated > MAX_PROMPT_COPIES:
        problem = f"the choices would repeat {repeated} tokens of prompts: expected at most {MAX_PROMPT_COPIES}"
        raise invalid("prompt", f"{problem}; leave out echo and return_token_ids, or ask for fewer choices")


def _stream(call: Call, ask: Ask) -> AsyncStream:
    options = ask.options.copy()
    options["request_id"] = f"{call.request_id[:MAX_ID_CHARACTERS]}-{secrets.token_hex(6)}"
    options["traceparent"] = call.traceparent
    with types_checked():
        return call.client.stream(ask.prompt, messages=ask.messages, token_ids=ask.token_ids, **options)


async def tokenize(
    call: Call, text: str | None, messages: Sequence[Message] | None, options: TokenizeOptions
) -> Tokenization:
    """The ids of a text or of messages."""
    with types_checked():
        request = await call.aside(lambda: build_tokenize(text, messages, options))
    return tokenization_from(await Relay(call.client).tokenize(request))


async def _wait_for_admission(events: AsyncIterator[Event]) -> None:
    """Take Admitted, the first event."""
    first = await anext(events, None)
    if first is None:
        raise Cancelled("the request was cancelled before it was admitted")
    if not isinstance(first, Admitted):
        raise ProtocolError(f"the first event was {type(first).__name__}, not Admitted")


async def _wait_for_start(events: AsyncIterator[Event]) -> Event | None:
    """Take Started, with which an engine begins; or return what came in its place."""
    async for event in events:
        if isinstance(event, Started):
            return None
        if isinstance(event, Finished) and event.error is not None:
            raise event.error
        if not isinstance(event, Resumed):
            return event
    raise Cancelled("the request was cancelled before an engine began it")


async def _feed(queue: _Queue, index: int, events: AsyncIterator[Event]) -> None:
    try:
        async for event in events:
            await queue.put((index, event, None))
    except Exception as error:  # raised again by whoever reads the queue
        await queue.put((index, None, error))
    else:
        await queue.put((index, None, None))
