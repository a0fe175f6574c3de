"""Routes HTTP requests to endpoints (caller, body, request id), and returns errors in an endpoint's form."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus

import structlog
from ringline import RingError
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.callers import Callers
from services.gateway.http.api_error import ApiError, api_error_from
from services.gateway.http.body import check_body_headers, check_origin, read_body
from services.gateway.http.call import REQUEST_ID, AnsweredError, Call, Dialect, Endpoint
from services.gateway.http.connection import peer_of
from services.gateway.http.disconnect import Disconnected, cancel_when_gone
from services.gateway.http.large import LargeBodies, check_plain_bytes
from services.gateway.http.load import Load, Request
from services.gateway.media.fetch import PictureFetcher
from services.gateway.media.pictures import naming_pictures
from services.gateway.metrics import GatewayMetrics
from services.gateway.openai.errors import OPENAI
from services.gateway.operations import Operation
from services.gateway.other_paths import path_advice

_EXPOSED = ("x-request-id", "retry-after", "retry-after-ms", "x-should-retry")
"""Answer headers that pages of allowed origins may read."""
_CLIENT_GONE = 499
"""The status in metrics, as in nginx, when a client did not wait for its answer."""
_UNKNOWN = "(unknown)"
"""Metrics label of requests for unknown paths."""

log = structlog.get_logger(__name__)


class Gateway:
    """What endpoints share."""

    def __init__(
        self,
        callers: Callers,
        load: Load,
        metrics: GatewayMetrics,
        *,
        max_body_bytes: int,
        max_media_bytes: int = 0,
        cors_origins: tuple[str, ...] = (),
        ring_serves: Callable[[], bool] = lambda: True,
        pictures: PictureFetcher | None = None,
    ) -> None:
        """``max_media_bytes``: of a body's pictures in base64, beside ``max_body_bytes``. ``ring_serves``: whether any
        processor has a model to serve.
        """
        self.callers = callers
        self.load = load
        self.metrics = metrics
        self.max_plain_bytes = max_body_bytes
        self.max_body_bytes = max_body_bytes + max_media_bytes
        self.cors_origins = cors_origins
        self.ring_serves = ring_serves
        self.large = LargeBodies()
        self.pictures = pictures or PictureFetcher()

    def application(self, endpoints: Sequence[Endpoint], operations: Mapping[str, Operation]) -> ASGIApp:
        """The ASGI application; ``operations``: by path."""
        by_path: dict[str, dict[str, Endpoint]] = defaultdict(dict)
        for one in endpoints:
            by_path[one.path][one.method] = one
        routes = [Route(path, _Path(self, path, methods)) for path, methods in by_path.items()]
        routes += [Route(path, _OperationPath(operation)) for path, operation in operations.items()]
        router = Router(routes, redirect_slashes=False, default=_Path(self, _UNKNOWN, {}))
        if not self.cors_origins:
            return router
        return CORSMiddleware(
            router, self.cors_origins, allow_methods=["*"], allow_headers=["*"], expose_headers=_EXPOSED, max_age=3600
        )


class _Path:
    """One path's endpoints as an ASGI application."""

    def __init__(self, gateway: Gateway, path: str, methods: Mapping[str, Endpoint]) -> None:
        """``methods``: endpoints by method; empty for unknown paths."""
        self._gateway = gateway
        self._path = path
        self._methods = methods
        self._allowed = ", ".join([*(["HEAD"] if "GET" in methods else []), *methods, "OPTIONS"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        exchange = _Exchange(send, headers)
        method = scope["method"]
        endpoint = self._methods.get("GET" if method == "HEAD" else method)
        dialect = OPENAI
        try:
            if endpoint is None:
                response = self._without_endpoint(scope)
            else:
                dialect = endpoint.dialect
                exchange.id_headers = dialect.id_headers
                await self._answer(endpoint, headers, exchange, scope, receive)
                response = None
        except ApiError as error:
            response = error_response(error, dialect, exchange.request_id)
        except Disconnected:
            exchange.status = HTTPStatus.REQUEST_TIMEOUT
            response = None
        if response is not None:
            await response(scope, receive, exchange.send)
        self._gateway.metrics.request_ended(self._path, exchange.status, exchange.first_byte_seconds, exchange.seconds)

    def _without_endpoint(self, scope: Scope) -> Response:
        if not self._methods:
            problem = f"there is no {scope['method'][:20]} {scope['path'][:200]!r} here; {path_advice(scope['path'])}"
            raise ApiError(HTTPStatus.NOT_FOUND, problem, code="not_found")
        if scope["method"] == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers={"allow": self._allowed})
        raise _wrong_method(scope, self._allowed)

    async def _answer(
        self, endpoint: Endpoint, headers: Headers, exchange: _Exchange, scope: Scope, receive: Receive
    ) -> None:
        """Answer a request. Raises ``ApiError`` if nothing was sent yet."""
        gateway = self._gateway
        client_gone: asyncio.Task[None] | None = None
        with gateway.load.request(peer_of(scope.get("client"))) as request:
            try:
                check_origin(headers, gateway.cors_origins)
                body = b""
                if endpoint.method == "POST":
                    check_body_headers(headers, endpoint.media_types, gateway.max_body_bytes)
                    body = await read_body(receive, gateway.max_body_bytes, gateway.load, request)
                request.receiving = False
                client_gone = asyncio.create_task(cancel_when_gone(request, receive))
                await self._respond(endpoint, headers, exchange, scope, receive, body, request)
            except asyncio.CancelledError:
                if request.refused is not None and not exchange.began:
                    raise request.refused from None
                if client_gone is None or not client_gone.done():
                    raise  # the process ends
            except (ApiError, Disconnected) as error:
                if exchange.began:
                    raise RuntimeError("an endpoint failed after its answer had begun") from error
                if isinstance(error, ApiError) and request.receiving and "expect" in headers:
                    error.more_headers = {**error.more_headers, "connection": "close"}  # the body may or may not follow
                raise
            except Exception:
                log.exception("a request failed", path=self._path, request_id=exchange.request_id)
                if exchange.began:
                    raise  # the server closes the connection, marking the answer incomplete
                problem = "the gateway failed; its log says why"
                raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, problem, code="internal") from None
            finally:
                if client_gone is not None:
                    client_gone.cancel()

    async def _respond(
        self,
        endpoint: Endpoint,
        headers: Headers,
        exchange: _Exchange,
        scope: Scope,
        receive: Receive,
        body: bytes,
        request: Request,
    ) -> None:
        with self._gateway.callers.serving(headers, asks_ring=endpoint.asks_ring) as caller:
            address, _ = peer_of(scope.get("client"))
            if len(body) > (limit := self._gateway.max_plain_bytes):
                await self._gateway.large.run(address, lambda: check_plain_bytes(body, limit))
            call = Call(
                body,
                headers,
                caller.client,
                exchange.request_id,
                address,
                self._gateway.large,
                path_params=scope.get("path_params", {}),
                query=scope["query_string"].decode("latin-1"),
                ring_serves=self._gateway.ring_serves(),
                pictures=self._gateway.pictures,
                hold=partial(self._gateway.load.hold, request),
            )
            try:
                response = await endpoint.handler(call)
                caller.answered()
            except AnsweredError as answered:
                caller.failed(answered.error)
                response = answered.response
            except ApiError as error:
                if error.ring_error is not None:  # worded by the endpoint
                    caller.failed(error.ring_error)
                raise
            except RingError as error:
                caller.failed(error)
                name_of = naming_pictures(call.prompt_pictures.fields, endpoint.dialect.name_of)
                raise api_error_from(error, name_of) from None
            try:
                await response(scope, receive, exchange.send)
            finally:
                self._gateway.metrics.tokens_used(self._path, call.tokens)


class _OperationPath:
    """An operation as an ASGI application. Answers also while the gateway is full or drains."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(send, Headers(scope=scope))
        if scope["method"] in ("GET", "HEAD"):
            response = await self._operation()
            response.headers["cache-control"] = "no-store"
        else:
            response = error_response(_wrong_method(scope, "GET, HEAD"), OPENAI, exchange.request_id)
        await response(scope, receive, exchange.send)


class _Exchange:
    """Tracks what was sent of an answer, and when."""

    def __init__(self, send: Send, headers: Headers) -> None:
        """``headers``: the request's."""
        given_id = headers.get("x-request-id", "")
        self.request_id = given_id if REQUEST_ID.fullmatch(given_id) else secrets.token_hex(16)
        self.id_headers = OPENAI.id_headers
        self._send = send
        self.status = _CLIENT_GONE
        """Until the answer begins."""
        self.began = False
        self.first_byte_seconds: float | None = None
        self._begun_at = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the request began."""
        return time.perf_counter() - self._begun_at

    async def send(self, message: Message) -> None:
        """ASGI's ``send``; adds the headers that every answer has."""
        if not self.began:
            self.began = True
            self.status = message["status"]
            headers = MutableHeaders(raw=message["headers"])
            for name in self.id_headers:
                headers[name] = self.request_id
            headers.setdefault("x-content-type-options", "nosniff")
            message = {**message, "headers": headers.raw}
        elif self.first_byte_seconds is None:
            self.first_byte_seconds = self.seconds
        await self._send(message)


def _wrong_method(scope: Scope, allowed: str) -> ApiError:
    problem = f"{scope['method'][:20]} is not a method of {scope['path'][:200]!r}: expected {allowed}"
    return ApiError(HTTPStatus.METHOD_NOT_ALLOWED, problem, code="method_not_allowed", more_headers={"allow": allowed})


def error_response(error: ApiError, dialect: Dialect, request_id: str) -> Response:
    """The response for an error."""
    body = dialect.error(error, request_id)
    return Response(body, int(error.status), error.headers, media_type="application/json")
