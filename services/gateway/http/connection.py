"""uvicorn's HTTP/1.1 connection, with limits on what a client sends, delays and leaves unread."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from services.gateway.http.api_error import ApiError, invalid
from services.gateway.http.http2 import PREFACE, Http2Refusal

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 256
HEAD_SECONDS = 10.0
"""For a request's line and headers, from the first byte."""
_REST_SECONDS = 5.0
"""For the body of a request that is answered already, and for the last bytes of a connection closed here."""
_MAX_PIPELINED = 16
"""Requests that wait for an earlier one."""
_RESET_SECONDS = 0.1
"""Within which most departed clients reset a connection; ``check`` finds the others."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_WRITE_BUFFER = 64 << 10
"""Unsent bytes at which writers must wait."""
_DROPPED = (b"upgrade", b"http2-settings", b"connection")

Peer = tuple[str, int]
"""A client's address and port; on a unix socket the address is empty."""


def peer_of(client: tuple[str, int | None] | None) -> Peer:
    """``client``: from an ASGI scope."""
    host, port = client or ("", 0)
    return host.removeprefix("::ffff:"), port or 0


@dataclass
class Connections:
    """Limits and counts that a server's connections share."""

    config: Config
    max_connections: int
    idle_seconds: float
    """After which a connection without requests is closed."""
    stall_seconds: float
    """Aborts a connection whose client does not read."""
    max_unsent_bytes: int
    """Limit over all clients together."""
    error_body: Callable[[ApiError, str], bytes]
    valid_certificate: Callable[[bytes], bool] | None = None
    """Whether a client's certificate, in DER form, is valid now; None: clients show none."""
    on_request: Callable[[Peer, int], None] = lambda _peer, _size: None
    """Called with each complete request's size."""
    on_refusal: Callable[[HTTPStatus], None] = lambda _status: None
    """Called for requests refused before the application."""
    state: ServerState = field(default_factory=ServerState)

    @property
    def open(self) -> list[Connection]:
        return [one for one in self.state.connections if isinstance(one, Connection)]

    def sweep(self, now: float) -> None:
        """Close slow connections; with too many unsent bytes, those with the most. Call regularly."""
        unsent = []
        for one in self.open:
            one.check(now)
            if size := one.transport.get_write_buffer_size():
                unsent.append((size, one))
        excess = sum(size for size, _ in unsent) - self.max_unsent_bytes
        for size, one in sorted(unsent, key=lambda pair: pair[0], reverse=True):
            if excess <= 0:
                break
            one.transport.abort()
            excess -= size


class Connection(HttpToolsProtocol):
    """One connection."""

    def __init__(self, shared: Connections) -> None:
        super().__init__(shared.config, shared.state, {})
        self._shared = shared
        self._peer: Peer = ("", 0)
        self._certificate: bytes | None = None
        self._since = self.loop.time()
        """Start of the connection, the current head, or the wait for the next."""
        self._in_message = False
        """Between a request's first byte and its last."""
        self._head_complete = True
        self._head_bytes = 0
        """Bytes since the last complete head."""
        self._header_bytes = self._num_headers = 0
        """Of the current message's head and trailers."""
        self._size = 0
        self._deaf = False
        """Whether further input is ignored."""
        self._begun = False
        """Whether anything has come from the client."""
        self._http2: Http2Refusal | None = None
        """Of a client that speaks HTTP/2."""
        self._unread_since: float | None = None
        self._rest_since: float | None = None
        self._problem: ApiError | None = None
        self._replaying = False
        self._half_closed = False
        """Whether the client has ended its side: it sends no more, but may still read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._peer = peer_of(self.client)
        if len(self.connections) > self._shared.max_connections or not self._certificate_is_valid():
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._deaf = True

    def _certificate_is_valid(self) -> bool:
        if self._shared.valid_certificate is None or not self._peer[0]:  # by a unix socket
            return True
        if self._certificate is None:
            self._certificate = self.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return self._certificate is not None and self._shared.valid_certificate(self._certificate)

    def check(self, now: float) -> None:
        """Close the connection of a client that is too slow, or whose certificate became invalid."""
        answering = self.cycle is not None and not self.cycle.response_complete
        unread = self._unread_since is not None and now - self._unread_since > self._shared.stall_seconds
        if unread or self._is_reset() or not self._certificate_is_valid():
            self.transport.abort()
        elif self.transport.is_closing() or (self._in_message and self._head_complete and not answering):
            self._rest_since = self._rest_since or now
            if now - self._rest_since > _REST_SECONDS:
                self.transport.abort()
        elif self._http2 is not None:
            if now - self._since > HEAD_SECONDS:
                self.transport.abort()
        elif not self._head_complete or self._head_bytes:
            if now - self._since > HEAD_SECONDS:
                problem = f"the request's headers were not complete within {HEAD_SECONDS:g} s"
                self._refuse(ApiError(HTTPStatus.REQUEST_TIMEOUT, problem, code="timeout"))
        elif not answering and now - self._since > self._shared.idle_seconds:
            self.transport.close()
        else:
            self._rest_since = None

    # What the client sends

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio takes either
        """Answer a client that only ended its sending side; returns whether the connection stays.

        A client that closed the whole connection looks the same until written to: then it resets the connection, and
        its request is cancelled. Before an answer, the bytes written are an interim response, which every HTTP/1.1
        client skips.
        """
        is_tls = self.transport.get_extra_info("ssl_object") is not None  # asyncio then closes anyway
        if is_tls or self._in_message or self.cycle is None or self.cycle.response_complete:
            return False
        if not self._half_closed:
            self._half_closed, self._deaf = True, True
            self.cycle.keep_alive = False  # of the last request, if several wait
            if not self.pipeline and not self.cycle.response_started and self.cycle.scope["http_version"] == "1.1":
                self.transport.write(_CONTINUE)
            self.loop.call_later(_RESET_SECONDS, lambda: self.check(self.loop.time()))
        return True

    def _is_reset(self) -> bool:
        """Whether a half-closed connection's client reset it, which only the socket's error shows."""
        if not self._half_closed or self.transport.is_closing():
            return False
        return bool(self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def data_received(self, data: bytes) -> None:
        """Parse data; refuse the connection if it is not HTTP, or too large."""
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        if not self._begun and data.startswith(PREFACE):
            self._http2 = Http2Refusal()
        self._begun = True
        if self._http2 is not None:
            self._refuse_http2(data)
            return
        if not self._in_message and not self._head_bytes:
            self._since = self.loop.time()
        self._head_bytes += len(data)
        self._size += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(self._problem or invalid(None, f"this is not an HTTP/1.1 request: {error}"))
            return
        if self._head_complete and (self._in_message or not self._head_bytes):
            self._head_bytes = 0
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())

    def _refuse_http2(self, data: bytes) -> None:
        assert self._http2 is not None
        answer, ended = self._http2.feed(data)
        self.transport.write(answer)
        if ended:
            self._deaf = True
            if self.transport.can_write_eof():
                self.transport.write_eof()  # closed with frames unread, it would be reset, and the answer lost
            else:
                self.transport.close()
            self._shared.on_refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._replaying:
                raise httptools.HttpParserError("no other protocol is spoken here") from None
            # A server may decline an upgrade by answering in HTTP/1.1. httptools takes what follows for the other
            # protocol, but it is the body: Java's clients ask for HTTP/2 with each request.
            lines = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
            for name, value in self.headers:
                if name not in _DROPPED:
                    lines += [name, b": ", value, b"\r\n"]
            self._replaying = False
            self.parser = httptools.HttpRequestParser(self)
            self.parser.feed_data(b"".join((*lines, b"\r\n")))
            self._feed(data[upgrade.args[0] :])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message, self._head_complete = True, False
        self._header_bytes = self._num_headers = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._count(len(name) + len(value) + 4)
        if not self._head_complete:  # ignore trailers
            super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEAD_BYTES or self._num_headers > MAX_HEADERS:
            self._raise(_head_too_large())

    def on_headers_complete(self) -> None:
        version, method = self.parser.get_http_version(), self.parser.get_method()
        if version not in ("1.0", "1.1"):
            problem = f"HTTP/{version} is not spoken here: use HTTP/1.1"
            self._raise(ApiError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, problem))
        if method == b"CONNECT":
            self._raise(ApiError(HTTPStatus.METHOD_NOT_ALLOWED, "this is not a proxy", code="method_not_allowed"))
        names = Counter(name for name, _ in self.headers)
        if names[b"host"] > 1 or (version == "1.1" and not names[b"host"]):
            self._raise(invalid(None, "a request has exactly one header Host"))
        for name, value in self.headers:
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                self._raise(ApiError(HTTPStatus.NOT_IMPLEMENTED, "transfer-encoding: expected chunked"))
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._raise(ApiError(HTTPStatus.TOO_MANY_REQUESTS, "too many requests before the answer to the first"))
        if self.parser.should_upgrade():
            self.scope["method"] = method.decode("ascii")
            self._replaying = True
            return
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            self._raise(invalid(None, "the request's target is not a URL"))
        self._head_complete, self._head_bytes = True, 0

    def on_message_complete(self) -> None:
        if self._replaying:
            return
        super().on_message_complete()
        self._shared.on_request(self._peer, self._size)
        self._in_message, self._head_bytes, self._size = False, 0, 0
        self._since = self.loop.time()

    def _raise(self, problem: ApiError) -> None:
        """Stop the parser."""
        self._problem = problem
        raise httptools.HttpParserError(problem.message)

    def _refuse(self, problem: ApiError) -> None:
        """Read no more; answer with ``problem``, unless an answer has begun."""
        self._deaf = True
        cycle, unfinished = self.cycle, self._in_message and self._head_complete
        if cycle is None or cycle.response_complete:
            self._write_refusal(problem)
        elif unfinished and (self.pipeline or cycle.response_started):
            self.transport.abort()
        elif unfinished:  # the broken request is being answered
            cycle.disconnected = True
            cycle.message_event.set()
            self._write_refusal(problem)
        else:
            cycle.keep_alive = False

    def _write_refusal(self, problem: ApiError) -> None:
        request_id = secrets.token_hex(16)
        body = self._shared.error_body(problem, request_id)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": request_id,
            **problem.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[problem.status] + lines.encode() + b"\r\n" + body)
        self.transport.close()
        self._shared.on_refusal(problem.status)

    # What the client gets

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(cycle, self.flow, app)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()


def _without_chunks(cycle: RequestResponseCycle, flow: FlowControl, app: Any) -> Any:
    """``app`` for an HTTP/1.0 client, which knows no chunks: closing the connection ends the answer."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def send_unframed(message: Any) -> None:
            if flow.write_paused and not cycle.disconnected:
                await flow.drain()
            if cycle.disconnected:
                return
            if message["type"] == "http.response.start":
                cycle.response_started = True
                pairs = (*cycle.default_headers, *message.get("headers", ()), (b"connection", b"close"))
                lines = b"".join(b"%b: %b\r\n" % pair for pair in pairs if pair[0] != b"transfer-encoding")
                cycle.transport.write(STATUS_LINE[message["status"]] + lines + b"\r\n")
                return
            if cycle.scope["method"] != "HEAD":
                cycle.transport.write(message.get("body", b""))
            if not message.get("more_body", False):
                cycle.response_complete = True
                cycle.message_event.set()
                cycle.transport.close()
                cycle.on_response()

        await app(scope, receive, send_unframed)

    return answer


def _head_too_large() -> ApiError:
    limits = f"{MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes"
    problem = f"the request's line and headers are larger than the limits of {limits}: send fewer or shorter ones"
    return ApiError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, problem, code="headers_too_large")
