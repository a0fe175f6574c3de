"""One path from body to answer for generating endpoints, which declare their request, asks, names and writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from ringline import Event, RingError, Usage
from starlette.responses import Response

from services.gateway.answer import Answer, Ask
from services.gateway.fields import checked
from services.gateway.http.api_error import ApiError, api_error_from
from services.gateway.http.call import Call, parse
from services.gateway.http.event_stream import PING, EventStream
from services.gateway.media.pictures import naming_pictures


class GenerationRequest(Protocol):
    """A body, declared with ``fields``."""

    stream: bool | None


_Request = TypeVar("_Request", bound=GenerationRequest)


class Writer(ABC):
    """Writes one answer: ``whole``, or streamed: ``begin``, ``add`` per event, then ``end`` or ``fail``."""

    def begin(self) -> bytes:
        """The stream's first bytes."""
        return b""

    @abstractmethod
    async def add(self, ask: int, event: Event) -> bytes:
        """Write an event of the ask of that index; empty if there is nothing to send."""

    @abstractmethod
    def end(self, usage: Usage) -> bytes:
        """The bytes after all events."""

    @abstractmethod
    def fail(self, error: ApiError) -> bytes:
        """The bytes in place of the missing rest."""

    @abstractmethod
    async def whole(self, answer: Answer) -> bytes:
        """The body of an answer that is not streamed. Raises ``RingError``."""


@dataclass(frozen=True)
class GenerationEndpoint(Generic[_Request]):
    """An API's declaration; ``answer`` is the handler."""

    body: type[_Request]
    asks: Callable[[_Request], Sequence[Ask]]
    """A request's asks; called in a thread for large requests. Raises ``ApiError``."""
    writer: Callable[[Call, _Request, Sequence[Ask], Answer], Awaitable[Writer]]
    """Called once all asks are admitted."""
    names: Callable[[_Request], Callable[[str], str]]
    """Maps the ring's field names to the request's."""
    call_of: Callable[[Call, _Request], Call] = lambda call, request: call
    """The call, adjusted by its body."""
    is_kept: Callable[[_Request], bool] = lambda request: not request.stream
    """Whether the answer is kept until it ends."""
    ping: bytes = PING
    """Streamed while nothing happens."""

    async def answer(self, call: Call) -> Response:
        """Answer a call, whole or as events."""
        request, asks = await call.aside(lambda: self._read(call.body))
        call = self.call_of(call, request)
        for ask in asks:
            await call.fetch_pictures(ask.messages)
        name_of = naming_pictures(call.prompt_pictures.fields, self.names(request))
        try:
            answer = await Answer.begin(call, asks, whole=self.is_kept(request))
            writer = await answer.needing(self.writer(call, request, asks, answer))
            if request.stream:
                return EventStream(_events(answer, writer, name_of), ping=self.ping)
            async with aclosing(answer):
                body = await writer.whole(answer)
        except RingError as error:
            raise api_error_from(error, name_of) from None
        return Response(body, media_type="application/json")

    def _read(self, body: bytes) -> tuple[_Request, Sequence[Ask]]:
        request: _Request = checked(cast(Any, parse(self._decoder, body)))
        return request, self.asks(request)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[_Request]:
        return msgspec.json.Decoder(self.body)


async def _events(answer: Answer, writer: Writer, name_of: Callable[[str], str]) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer):
        if begun := writer.begin():
            yield begun
        try:
            async for ask, event in answer.events():
                if written := await writer.add(ask, event):
                    yield written
        except RingError as error:
            yield writer.fail(api_error_from(error, name_of))
        else:
            yield writer.end(answer.usage)
