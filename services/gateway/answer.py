"""Sends a call's requests to the ring, and merges the events of several."""

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
from services.gateway.model_names import answered_model

MAX_ID_CHARACTERS = 90
"""Characters of the caller's id in the ring's request id; a unique suffix follows."""
MAX_LOGPROBS = 512 << 10
"""Tokens and alternatives, over all choices, of an answer sent whole. As JSON they take 36 MiB."""
MAX_PROMPT_COPIES = 4 << 20
"""Prompt tokens that an answer repeats, over all choices. As ids they take some 24 MiB."""
_LOGPROBS_LIMIT = (
    f"expected at most {MAX_LOGPROBS}, alternatives counted; ask for fewer tokens, choices or alternatives"
)
_QUEUED_EVENTS = 64
"""Of several requests, not yet taken; further ones wait in the client library."""

_T = TypeVar("_T")
_Queue = asyncio.Queue[tuple[int, Event | None, Exception | None]]
"""Entries: an ask's index with an event; or with neither, or an error, at the ask's end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to the ring; exactly one of the prompts is set."""

    options: Options
    prompt: str | None = None
    messages: Sequence[Message] | None = None
    token_ids: Sequence[int] | None = None
    prompt_copies: int = 1
    """How often the answer repeats the prompt's data: once, or once per choice."""


class Answer:
    """The answers to one call's asks, each computed by an engine. ``close`` cancels those still running."""

    def __init__(
        self,
        call: Call,
        streams: Sequence[AsyncStream],
        events: Sequence[AsyncIterator[Event]],
        first: Event | None,
        *,
        whole: bool,
        asked_model: str | None = None,
    ) -> None:
        """Use ``begin``. ``first``: the first ask's first event, if taken already; ``events`` follow it."""
        self._call = call
        self._streams = streams
        self._events = events
        self._first = first
        self._whole = whole
        self._asked_model = asked_model
        self._closed = False

    @classmethod
    async def begin(cls, call: Call, asks: Sequence[Ask], *, whole: bool = False) -> Self:
        """Return once every ask is admitted and the first has begun; else cancel all and raise the first error.

        Admission alone is too early: a full engine refuses after it, and the refusal must keep its status. All begun is
        too late: of many asks, the last may wait until the first have ended.

        ``whole``: the answers are kept until they end, so their log probabilities are limited.
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
            asked = asks[0].options.get("model")
            return cls(call, streams, events, await _wait_for_start(events[0]), whole=whole, asked_model=asked)
        except BaseException:
            for task in waiting:
                task.cancel()
            for stream in streams:
                await stream.close()
            await asyncio.gather(*waiting, return_exceptions=True)
            raise

    @property
    def admitted(self) -> Sequence[Admitted]:
        """Each ask's Admitted event."""
        return [request for stream in self._streams if (request := stream.request) is not None]

    @property
    def model(self) -> str:
        """The name of the model that the answer has."""
        first = self.admitted[0]
        return answered_model(self._asked_model, first.model, "" if first.adapter is None else first.adapter.name)

    async def events(self) -> AsyncGenerator[tuple[int, Event], None]:
        """The events after Admitted, each with its ask's index. Raises the first RingError."""
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
        """The whole answer to each ask. Raises the first RingError."""
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
        """The result of ``work``, which the answer depends on: if it fails, closes the asks."""
        try:
            return await work
        except BaseException:
            await self.close()
            raise

    @property
    def usage(self) -> Usage:
        """The sum over all asks, once they have ended."""
        each = [usage for stream in self._streams if (usage := stream.usage) is not None]
        return Usage(
            sum(one.prompt_tokens for one in each),
            sum(one.cached_tokens for one in each),
            sum(one.completion_tokens for one in each),
            sum(one.reasoning_tokens for one in each),
            sum(one.media_tokens for one in each),
            sum(one.accepted_draft_tokens for one in each),
            sum(one.rejected_draft_tokens for one in each),
        )

    async def close(self) -> None:
        """Cancel asks that have not ended, and count the tokens of the others."""
        if not self._closed:
            self._closed, used = True, self.usage
            self._call.tokens.prompt += used.prompt_tokens
            self._call.tokens.output += used.completion_tokens
        for stream in self._streams:
            await stream.close()

    aclose = close
    """For ``contextlib.aclosing``."""


def _check_logprobs(asks: Sequence[Ask]) -> None:
    """Refuse early a whole answer with too many log probabilities: 70 bytes each."""
    count = 0
    for ask in asks:
        top, tokens = ask.options.get("logprobs"), ask.options.get("max_tokens")
        if top is not None and tokens is not None:
            count += max(1, ask.options.get("n") or 1) * max(0, tokens) * (1 + max(0, top))
    if count > MAX_LOGPROBS:
        raise invalid("logprobs", f"{count} may come for all tokens and choices: {_LOGPROBS_LIMIT}")


def _check_prompts(asks: Sequence[Ask], streams: Sequence[AsyncStream]) -> None:
    """The same for prompts, whose tokens are known after admission; streams, too, send them at once."""
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
    """Take Started, an engine's first event; return another event that came in its place."""
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
    except Exception as error:  # the queue's reader raises it again
        await queue.put((index, None, error))
    else:
        await queue.put((index, None, None))
