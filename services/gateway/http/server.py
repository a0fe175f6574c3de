"""The HTTP server: listens, watches its connections and the process's memory, stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import structlog
from uvicorn.config import Config

from services.common.config.addresses import join_address
from services.common.config.errors import FatalError
from services.common.config.settings import ServerSettings
from services.common.rpc.bind_address import check_bindable, remove_socket_file
from services.common.rpc.connections import ConnectionGuard, allowed_connections
from services.common.rpc.memory_guard import MemoryGuard
from services.gateway.http.api_error import ApiError
from services.gateway.http.connection import Connection, Connections, Peer
from services.gateway.http.load import Load
from services.gateway.http.tls import ServerTls

_BACKLOG = 1024
_HANDSHAKE_SECONDS = 10.0
_SHARE_OF_UNSENT = 4
"""Answers that clients leave unread may take 1/_SHARE_OF_UNSENT of the memory budget."""
_SWEEP_SECONDS = 0.5

log = structlog.get_logger(__name__)


class HttpServer:
    """One server, from ``start`` to ``stop``."""

    def __init__(
        self,
        settings: ServerSettings,
        app: Any,
        load: Load,
        error_body: Callable[[ApiError, str], bytes],
        *,
        tls: ServerTls | None = None,
        on_refusal: Callable[[HTTPStatus], None] = lambda _status: None,
    ) -> None:
        """``app``: an ASGI application. ``error_body``: writes errors of requests that reach no endpoint."""
        self._settings = settings
        self._load = load
        self._tls = tls
        self.address = settings.address
        """Where to listen; after ``start`` with the actual port."""
        config = Config(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=int(settings.connection_idle_timeout) + 1,
        )
        config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the application logs failures
        self._shared = Connections(
            config,
            allowed_connections(settings.max_connections),
            settings.connection_idle_timeout,
            settings.stall_timeout,
            settings.memory_budget // _SHARE_OF_UNSENT,
            error_body,
            None if tls is None or tls.clients is None else tls.clients.valid,
            on_request=self._on_request,
            on_refusal=on_refusal,
        )
        self._listening: list[asyncio.Server] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._memory: MemoryGuard | None = None
        self._guard: ConnectionGuard | None = None

    @property
    def num_connections(self) -> int:
        return len(self._shared.state.connections)

    async def start(self) -> str:
        """Listen; returns the address. Raises ``FatalError`` if it cannot be bound."""
        settings = self._settings
        check_bindable(settings)
        try:
            await self._listen()
        except OSError as error:
            raise FatalError(f"cannot listen on {settings.address}: {error}") from None
        port = None
        if settings.private_socket is None:
            port = int(self._listening[0].sockets[0].getsockname()[1])
            self.address = join_address(settings.host, port)
            self._guard = ConnectionGuard(port, self._shared.max_connections, self._load.is_busy)
            self._guard.start()
        self._memory = MemoryGuard(port, settings.memory_budget)
        self._memory.start()
        self._sweeping = asyncio.create_task(self._sweep())
        return self.address

    async def _listen(self) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._tls is not None:
            tls = {
                "ssl": self._tls.context,
                "ssl_handshake_timeout": _HANDSHAKE_SECONDS,
                "ssl_shutdown_timeout": _HANDSHAKE_SECONDS,
            }
        if settings.private_socket is None:
            place = settings.host, settings.port
            self._listening.append(
                await loop.create_server(
                    self._connection, *place, backlog=_BACKLOG, reuse_port=settings.share_port, **tls
                )
            )
        if settings.uds is not None:
            self._listening.append(await loop.create_unix_server(self._connection, settings.uds, backlog=_BACKLOG))

    def _connection(self) -> Connection:
        return Connection(self._shared)

    def _on_request(self, peer: Peer, size: int) -> None:
        if self._memory is not None and peer[0]:
            host, port = peer
            self._memory.on_message(f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}", size)

    async def _sweep(self) -> None:
        while True:
            self._shared.state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
            self._shared.sweep(asyncio.get_running_loop().time())
            await asyncio.sleep(_SWEEP_SECONDS)

    def leave_shared_port(self) -> None:
        """Leave new connections to the others at a shared port; without one, they are still accepted."""
        if self._settings.share_port:
            self._close_listening()

    def _close_listening(self) -> None:
        for listening in self._listening:
            listening.close()

    def close_idle(self) -> None:
        """Close connections without a request, and others after their answer. New ones are still accepted."""
        for one in self._shared.open:
            one.shutdown()

    async def stop(self, grace: float) -> None:
        """Stop listening, give answers ``grace`` seconds to finish, and close every connection."""
        if self._memory is not None:
            self._memory.stop()
        if self._guard is not None:
            self._guard.stop()
        self._close_listening()
        self.close_idle()
        tasks = self._shared.state.tasks
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        for task in list(tasks):
            task.cancel()
        end = time.monotonic() + grace
        while self._shared.open and time.monotonic() < end:
            self.close_idle()
            await asyncio.sleep(0.01)
        for one in self._shared.open:
            one.transport.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()
        remove_socket_file(self._settings)
