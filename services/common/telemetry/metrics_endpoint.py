"""The metrics port: an HTTP server in its own threads, so that no request waits for the event loop.

``/metrics`` is for Prometheus; a service adds its other pages (health, the live page). The server's cost is bounded: at
most ``MAX_CONNECTIONS``, one request each; a further one closes the oldest.
"""

from __future__ import annotations

import errno
import socket
import socketserver
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from services.common.config.errors import FatalError
from services.common.config.settings import ServiceSettings

MAX_CONNECTIONS = 16
READ_TIMEOUT = 10.0
"""Seconds that a client may neither read nor send."""
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format, whatever the client accepts: OpenMetrics allows no colons in names, which ours have."""


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to requests for one path."""

    content_type: str
    body: Callable[[], bytes]
    """Called for each request, in a thread of the server."""
    headers: Mapping[str, str] = field(default_factory=dict)
    status: Callable[[], HTTPStatus] = lambda: HTTPStatus.OK
    """The answer's status; called like ``body``."""


def server_header(service: str) -> str:
    """The header ``Server`` of a service's metrics port."""
    return f"ringline-{service}"


def start_metrics(
    settings: ServiceSettings, registry: CollectorRegistry, pages: Mapping[str, Page] | None = None
) -> MetricsEndpoint | None:
    """Start the metrics endpoint, unless ``settings`` disable it; raises ``FatalError`` if its port cannot be bound."""
    if settings.metrics_address is None:
        return None
    host, port = settings.metrics_address
    try:
        return MetricsEndpoint(registry, host, port, pages, name=server_header(settings.service))
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound ({error.strerror or error})"
        raise FatalError(f"metrics port {port} {reason}: choose another with --metrics-port, or --no-metrics") from None


class MetricsEndpoint:
    """Listens from its construction until ``close``."""

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int,
        pages: Mapping[str, Page] | None = None,
        *,
        name: str = "ringline",
    ) -> None:
        """Listen on ``host:port`` (0 takes a free port); raises ``OSError`` if it cannot be bound.

        ``pages``: pages in addition to ``/metrics``, keyed by path. ``name``: the header ``Server`` of each answer.
        """
        metrics = Page(_TEXT, lambda: generate_latest(registry))
        self._server = _Server(host, port, {"/metrics": metrics, **(pages or {})}, name)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], name: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self.name = name
        self._open: dict[Any, None] = {}
        """Open connections, oldest first."""
        self._lock = Lock()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer.server_bind would resolve the host's name by DNS

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                with suppress(OSError):  # its thread notices the end, and removes it from the list
                    next(iter(self._open)).shutdown(socket.SHUT_RDWR)
                self._open.pop(next(iter(self._open)))
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log disconnects."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, then closes the connection."""

    server: _Server
    timeout = READ_TIMEOUT

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"The pages are {', '.join(self.server.pages)}.")
            return
        body = page.body()
        self.send_response(page.status())
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **page.headers}
        for name, value in {"Content-Type": page.content_type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def version_string(self) -> str:
        """The header ``Server``."""
        return self.server.name

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""
