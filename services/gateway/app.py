"""From an HTTP request to its endpoint: body, caller, request id; and back: errors in the endpoint's form."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from http import HTTPStatus

import structlog
from ringline import RingError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from services.gateway.callers import Callers
from services.gateway.http.api_error import ApiError, api_error_from, invalid
from services.gateway.http.call import Call, Dialect, Endpoint

log = structlog.get_logger(__name__)


class _EndpointApp:
    """One endpoint as an ASGI application."""

    def __init__(self, endpoint: Endpoint, callers: Callers, max_body_bytes: int) -> None:
        self._endpoint = endpoint
        self._callers = callers
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id") or secrets.token_hex(16)
        watching: asyncio.Task[None] | None = None
        try:
            body = await read_body(receive, self._max_body_bytes)
            watching = asyncio.create_task(_cancel_when_gone(asyncio.current_task(), receive))
            response = await self._answer(body, headers, request_id)
        except ApiError as error:
            response = error_response(error, self._endpoint.dialect, request_id)
        except asyncio.CancelledError:
            if watching is None or not watching.done():
                raise  # the process ends
            return
        try:
            response.headers["x-request-id"] = request_id
            await response(scope, receive, send)
        except asyncio.CancelledError:
            if watching is None or not watching.done():
                raise
        finally:
            if watching is not None:
                watching.cancel()

    async def _answer(self, body: bytes, headers: Headers, request_id: str) -> Response:
        try:
            return await self._endpoint.handler(Call(body, headers, self._callers.client_of(headers), request_id))
        except RingError as error:
            raise api_error_from(error, self._endpoint.dialect.name_of) from None
        except TypeError as error:  # from the client library: a value of a wrong type
            raise invalid(None, str(error)) from None


async def _cancel_when_gone(task: asyncio.Task[None] | None, receive: Receive) -> None:
    """Cancel ``task``, and with it what it waits for at the processors, once the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if task is not None:
        task.cancel()


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises ``ApiError`` for one that is too large or never becomes complete."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(HTTPStatus.BAD_REQUEST, "the client went away before its request was complete")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > max_bytes:
            problem = f"the body has more than {max_bytes} bytes, the limit: send less, or raise --max-message-bytes"
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, problem, code="too_large")
    return b"".join(parts)


def application(endpoints: Sequence[Endpoint], callers: Callers, max_body_bytes: int) -> Router:
    """The ASGI application."""
    return Router(
        [Route(one.path, _EndpointApp(one, callers, max_body_bytes), methods=[one.method]) for one in endpoints]
    )


def error_response(error: ApiError, dialect: Dialect, request_id: str) -> Response:
    """The response for an error."""
    body = dialect.error(error, request_id)
    return Response(body, int(error.status), error.headers, media_type="application/json")
