"""InferenceService over gRPC-Web and Connect: all of its calls but Session.

Requests go through the client library, so that a stream survives its processor. Browsers have no bidirectional streams.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import status_pb2
from ringline.errors import DeadlineExceeded, RingError, from_status, invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay
from ringline.types.v1 import output_pb2
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.answer import MAX_ID_CHARACTERS
from services.gateway.http.call import AnsweredError, Call, Dialect, Endpoint
from services.gateway.rpc import connect, grpc_web
from services.gateway.rpc.envelope import decode, enclosed, encode
from services.gateway.rpc.status import status_of

_PATH = "/ringline.inference.v1.InferenceService/"
_DIALECT = Dialect(connect.api_error_body, lambda field: field)
_LONGEST_TIMEOUT = 604800.0
"""Seconds; the limit of ``GenerateRequest.timeout_ms``."""
_MAX_ID_BYTES = 128
_ENTRY_BYTES = 4
"""About the least size of a list entry in protobuf."""
_OK = status_pb2.Status()
_UNIMPLEMENTED: int = grpc.StatusCode.UNIMPLEMENTED.value[0]
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True)
class _Form:
    """How one call's messages are encoded."""

    media_type: str

    @classmethod
    def of(cls, call: Call, default: str) -> _Form:
        return cls(call.headers.get("content-type", default).partition(";")[0].strip().lower())

    @property
    def _web(self) -> bool:
        return self.media_type in grpc_web.MEDIA_TYPES

    @property
    def _text(self) -> bool:
        return self.media_type.startswith(grpc_web.TEXT)

    @property
    def _json(self) -> bool:
        return self.media_type.endswith("json")

    @property
    def has_envelopes(self) -> bool:
        """Whether the answer may be more than one message."""
        return self.media_type not in connect.UNARY_MEDIA_TYPES

    def read(self, kind: type[_M], call: Call) -> _M:
        """The request. Raises RingError, also for compressed messages."""
        header = grpc_web.COMPRESSION_HEADER if self._web else connect.COMPRESSION_HEADER
        if call.headers.get(header, "identity") != "identity":
            problem = f"{header}: compressed messages are not read: expected identity"
            raise from_status(status_pb2.Status(code=_UNIMPLEMENTED, message=problem))
        data = call.body
        if self._web:
            data = grpc_web.request_data(data, text=self._text)
        elif self.has_envelopes:
            data = enclosed(data)
        return decode(kind, data, json=self._json)

    def timeout(self, call: Call) -> float | None:
        """Seconds that the caller waits; None: forever, or nearly."""
        seconds = grpc_web.timeout_of(call.headers) if self._web else connect.timeout_of(call.headers)
        if seconds == 0:
            raise DeadlineExceeded("the call's timeout is 0")
        return None if seconds is not None and seconds > _LONGEST_TIMEOUT else seconds

    async def sent(self, message: Message, call: Call) -> bytes:
        """The bytes of a message; long JSON is written in a thread."""
        entries = message.ByteSize() // _ENTRY_BYTES if self._json else 0
        return await call.aside(lambda: self.message(message), entries)

    def message(self, message: Message) -> bytes:
        if self._json and isinstance(message, pb.GenerateResponse):
            _clear_details(message)
        data = encode(message, json=self._json)
        if self._web:
            return grpc_web.message_envelope(data, text=self._text)
        return connect.message_envelope(data) if self.has_envelopes else data

    def end(self, status: status_pb2.Status) -> bytes:
        """The bytes after the last message of an answer with envelopes."""
        return grpc_web.end_envelope(status, text=self._text) if self._web else connect.end_envelope(status)

    def failed(self, error: RingError, before: bytes = b"") -> AnsweredError:
        """The answer to a failed call, after the bytes ``before``."""
        status = status_of(error)
        if self.has_envelopes:
            return AnsweredError(error, Response(before + self.end(status), media_type=self.media_type))
        http_status, body = connect.unary_error(status)
        return AnsweredError(error, Response(body, http_status, media_type="application/json"))


def _clear_details(response: pb.GenerateResponse) -> None:
    """Clear a response's status details: in JSON, clients that lack their types could not read it."""
    if response.HasField("refused"):
        del response.refused.status.details[:]
    elif response.HasField("choice_finished") and response.choice_finished.HasField("error"):
        del response.choice_finished.error.details[:]


async def generate(call: Call) -> Response:
    """Generate; awaits the first response, which proves the caller's token valid."""
    form = _Form.of(call, connect.STREAM_MEDIA_TYPES[0])
    try:
        request, timeout = await call.aside(lambda: form.read(pb.GenerateRequest, call)), form.timeout(call)
        name = request.request_id
        if (size := len(name.encode())) > _MAX_ID_BYTES:
            raise invalid("request_id", f"{size} bytes: expected at most {_MAX_ID_BYTES}")
    except RingError as error:
        raise form.failed(error) from None
    request.request_id = f"{call.request_id[:MAX_ID_CHARACTERS]}-{secrets.token_hex(6)}"
    request.traceparent = request.traceparent or call.traceparent or ""
    ends_call = timeout is not None and not (request.HasField("timeout_ms") and request.timeout_ms < timeout * 1000)
    responses = Relay(call.client).generate(request, timeout)
    try:
        first = await anext(responses)
    except RingError as error:
        refused = pb.GenerateResponse(request_id=name, refused=pb.Refused(status=status_of(error)))
        raise form.failed(error, form.message(refused)) from None
    deadline = status_of(DeadlineExceeded("the call's timeout passed")) if ends_call else _OK
    return _Stream(_sent(responses, first, name, call, form, deadline), form.media_type)


async def _sent(
    responses: AsyncGenerator[pb.GenerateResponse, None],
    first: pb.GenerateResponse,
    name: str,
    call: Call,
    form: _Form,
    deadline: status_pb2.Status,
) -> AsyncGenerator[bytes, None]:
    """A stream's bytes, from the first response to the status: ``deadline`` if its time ran out."""
    status = _OK
    async with aclosing(responses):
        response: pb.GenerateResponse | None = first
        while response is not None:
            response.request_id, response.in_reply_to = name, 0
            if response.HasField("request_finished"):
                call.tokens.prompt += response.request_finished.usage.prompt_tokens
                call.tokens.output += response.request_finished.usage.completion_tokens
            elif response.choice_finished.finish_reason == output_pb2.FINISH_REASON_DEADLINE:
                status = deadline
            yield await form.sent(response, call)
            try:
                response = await anext(responses, None)
            except RingError as error:
                status, response = status_of(error), None
    yield form.end(status)


class _Stream(Response):
    """A streamed answer. Its parts are closed when the client is gone."""

    def __init__(self, parts: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._parts) as parts:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _unary(name: str, kind: type[_M], method: Callable[[Relay, _M, float | None], Awaitable[Message]]) -> Endpoint:
    """The endpoint of a unary method."""

    async def handler(call: Call) -> Response:
        form = _Form.of(call, connect.UNARY_MEDIA_TYPES[0])
        try:
            request, timeout = await call.aside(lambda: form.read(kind, call)), form.timeout(call)
            message = await method(Relay(call.client), request, timeout)
            if isinstance(message, pb.EmbedResponse | pb.ScoreResponse | pb.ClassifyResponse):
                call.tokens.prompt += message.report.usage.prompt_tokens
        except RingError as error:
            raise form.failed(error) from None
        end = form.end(_OK) if form.has_envelopes else b""
        return Response(await form.sent(message, call) + end, media_type=form.media_type)

    return Endpoint("POST", _PATH + name, handler, _DIALECT, connect.UNARY_MEDIA_TYPES + grpc_web.MEDIA_TYPES)


ENDPOINTS: Sequence[Endpoint] = (
    Endpoint("POST", _PATH + "Generate", generate, _DIALECT, connect.STREAM_MEDIA_TYPES + grpc_web.MEDIA_TYPES),
    _unary("Embed", pb.EmbedRequest, Relay.embed),
    _unary("Score", pb.ScoreRequest, Relay.score),
    _unary("Classify", pb.ClassifyRequest, Relay.classify),
    _unary("Tokenize", pb.TokenizeRequest, Relay.tokenize),
    _unary("Detokenize", pb.DetokenizeRequest, Relay.detokenize),
    _unary("ListModels", pb.ListModelsRequest, Relay.list_models),
    _unary("LoadAdapter", pb.LoadAdapterRequest, Relay.load_adapter),
    _unary("UnloadAdapter", pb.UnloadAdapterRequest, Relay.unload_adapter),
    _unary("ListAdapters", pb.ListAdaptersRequest, Relay.list_adapters),
)
