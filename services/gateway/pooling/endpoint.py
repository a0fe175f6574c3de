"""One path from body to answer for endpoints of vectors, scores and labels; large answers are written in pieces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import msgspec
from ringline import Model, RingError
from ringline.errors import ProtocolError
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.fields import checked
from services.gateway.http.api_error import api_error_from
from services.gateway.http.call import Call, parse
from services.gateway.http.large import SMALL_ENTRIES
from services.gateway.openai.models import model_of
from services.gateway.openai.sampling_fields import call_of
from services.gateway.pooling.fields import Asked, PoolingFields, identify
from services.gateway.pooling.floats import FLOAT_BYTES

_PIECE_BYTES = 256 << 10
_BODY_BYTES_PER_ENTRY = 64
"""A body of so many bytes counts as an entry of its answer, which may repeat it."""
_JSON = "application/json"


def pools(model: Model) -> bool:
    """Whether a model makes vectors, scores or labels."""
    return model.pooling is not None


def makes_vectors(model: Model) -> bool:
    """Whether a model makes vectors."""
    return model.pooling is not None and model.pooling.dimensions > 0


_Body = TypeVar("_Body", bound=PoolingFields)
Told = pb.EmbedResponse | pb.ScoreResponse | pb.ClassifyResponse
_Asked = TypeVar("_Asked", bound=Asked)
_Told = TypeVar("_Told", bound=Told)


@dataclass(frozen=True)
class PoolingEndpoint(Generic[_Body, _Asked, _Told]):
    """An endpoint's declaration; ``answer`` is the handler."""

    body: type[_Body]
    ask: Callable[[Relay, _Asked], Awaitable[_Told]]
    request: Callable[[_Body, Model | None], _Asked]
    """The ring's request; called in a thread for large bodies. Raises ``ApiError`` or ``InvalidRequest``."""
    write: Callable[[Call, _Body, _Told], Iterator[bytes]]
    """The pieces of the answer, each small; called in a thread for large answers."""
    names: Callable[[_Body], Callable[[str], str]]
    """Maps the ring's field names to the body's."""
    needs_model: Callable[[_Body], bool] = lambda body: False
    """Whether ``request`` depends on the model."""
    suits: Callable[[Model], bool] = pools
    """Which model that is, if the body names none."""

    async def answer(self, call: Call) -> Response:
        """Answer a call."""
        body: _Body = await call.aside(lambda: checked(cast(Any, parse(self._decoder, call.body))))
        call = call_of(call, body)
        try:
            model = await model_of(call, body.model, self.suits) if self.needs_model(body) else None
            asked = await call.aside(lambda: self._build(call, body, model))
            told = await self.ask(Relay(call.client), asked)
            numbers = _numbers(told)
            _check(asked, told, numbers)
        except RingError as error:
            raise api_error_from(error, self.names(body)) from None
        call.tokens.prompt += told.report.usage.prompt_tokens
        entries = int(numbers) + len(call.body) // _BODY_BYTES_PER_ENTRY
        return await _written(call, self.write(call, body, told), entries)

    def _build(self, call: Call, body: _Body, model: Model | None) -> _Asked:
        asked = self.request(body, model)
        identify(asked, call)
        return asked

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[_Body]:
        return msgspec.json.Decoder(self.body)


def _check(asked: Asked, told: Told, numbers: float) -> None:
    """Raise ``ProtocolError`` unless there is a result for each input. ``numbers``: of all results."""
    if isinstance(asked, pb.ScoreRequest) or isinstance(told, pb.ScoreResponse):
        if not (isinstance(asked, pb.ScoreRequest) and isinstance(told, pb.ScoreResponse)):
            raise ProtocolError("the server sent another kind of result than was asked for")
        found, expected, width = numbers, len(asked.documents), 1
    else:
        width = told.dimensions if isinstance(told, pb.EmbedResponse) else len(told.labels)
        expected = sum(told.counts) if told.counts else len(asked.inputs)
        found = numbers / max(width, 1)
        if (counts := told.counts) and len(counts) != len(asked.inputs):
            raise ProtocolError(f"{len(counts)} counts of results came for {len(asked.inputs)} inputs")
    if found != expected or not width:
        raise ProtocolError(f"the server sent {found:g} rows of {width} numbers: expected {expected}")


def _numbers(told: Told) -> float:
    """Numbers in all results. Each look at ``values`` copies them, and they may have 32 MiB."""
    return len(told.scores) if isinstance(told, pb.ScoreResponse) else len(told.values) / FLOAT_BYTES


async def _written(call: Call, pieces: Iterator[bytes], entries: int) -> Response:
    """The response of pieces: a large one is written as its client takes it, so that it is never whole in memory."""
    if entries <= SMALL_ENTRIES:
        return Response(b"".join(pieces), media_type=_JSON)
    begun = await call.aside(lambda: _next(pieces), entries)
    following = await call.aside(lambda: _next(pieces), entries) if len(begun) >= _PIECE_BYTES else b""
    if not following:
        return Response(begun, media_type=_JSON)
    return _InPieces(call, (begun, following), pieces)


def _next(pieces: Iterator[bytes]) -> bytes:
    """The next pieces together; empty after the last."""
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            break
    return b"".join(found)


class _InPieces(Response):
    """A response that is written while it is sent."""

    media_type = _JSON

    def __init__(self, call: Call, begun: tuple[bytes, ...], pieces: Iterator[bytes]) -> None:
        """``begun``: what is written already."""
        super().__init__()
        del self.headers["content-length"]
        self._call = call
        self._begun = begun
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for piece in self._begun:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        while piece := await self._call.large.run(self._call.address, lambda: _next(self._pieces)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
