"""The lifecycle of a gRPC server: bind, load, serve, drain (``services.common.process.drain``), stop.

Health reports NOT_SERVING until the service sets it to SERVING, and again as soon as a drain begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.config.addresses import host_and_port, join_address
from services.common.config.errors import FatalError
from services.common.config.settings import ServerSettings
from services.common.process.drain import Drain, end_task
from services.common.process.heartbeat import heartbeat
from services.common.rpc.bind_address import check_bindable, remove_socket_file
from services.common.rpc.call_interceptor import CallInterceptor
from services.common.rpc.connections import ConnectionGuard, allowed_connections
from services.common.rpc.grpc_options import server_options
from services.common.rpc.handlers import Authorize, rpc_handlers
from services.common.rpc.health import Health, OnWatch
from services.common.rpc.memory_guard import MemoryGuard
from services.common.rpc.open_calls import CallRegistry

_LONGEST_OVERRUN = 60.0
"""Seconds beyond its grace after which a drain has certainly ended, in one way or another."""
_STATUS_GRACE = 0.5
"""Seconds after the drain for handlers that are returning to send their status."""


class Server:
    """One grpc.aio server with health, reflection, limits and the call interceptor.

    Register servicers with ``add_service``, then ``start()`` and ``stop()`` it, or ``run()`` it for a whole process.
    """

    def __init__(
        self,
        settings: ServerSettings,
        services: Sequence[str],
        *,
        credentials: grpc.ServerCredentials | None = None,
        authorizers: Sequence[Authorize] = (),
        max_connection_age: float | None = None,
        on_watch: OnWatch = lambda _: lambda: None,
    ) -> None:
        """``services``: full names of the services that will be registered. Needs a running event loop.

        Without ``credentials`` it speaks plain text. ``authorizers``: see ``CallInterceptor``. After
        ``max_connection_age`` seconds clients make new calls on another connection; open calls continue. ``on_watch``:
        of its ``Health``.
        """
        self._settings = settings
        self._max_connections = allowed_connections(settings.max_connections)
        self.health = Health(services, on_watch)
        self.drain = Drain(settings.drain_grace)
        """Ends ``run``."""
        self._has_served = False
        self.address = settings.address
        """The address to listen on; after ``start`` with the port in use."""
        self._calls = CallRegistry(settings.max_calls, settings.max_connections_per_client)
        self._memory: MemoryGuard | None = None
        self._connections: ConnectionGuard | None = None
        self._credentials = credentials
        self.grpc = grpc.aio.server(
            interceptors=[CallInterceptor(self._calls, settings.stall_timeout, self._on_call, authorizers)],
            options=server_options(settings, self._max_connections, max_connection_age),
        )
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)

    def add_service(self, service: ServiceDescriptor, servicer: object) -> None:
        """Answer the RPCs of ``service``; see ``rpc_handlers``."""
        self.grpc.add_generic_rpc_handlers((rpc_handlers(service, servicer, self._on_message),))

    def start_memory_guard(self, baseline: int = 0) -> None:
        """Keep the process within ``baseline`` bytes plus its memory budget. Call it after ``start``.

        On a unix socket no connection is closed, because Linux does not count what it received; its peers passed the
        permissions of the socket's file.
        """
        port = host_and_port(self.address)[1] if self._settings.private_socket is None else None
        self._memory = MemoryGuard(port, self._settings.memory_budget, baseline)
        self._memory.start()

    def _on_call(self, peer: str, metadata_bytes: int) -> None:
        if self._memory is not None:
            self._memory.on_call(peer, metadata_bytes)

    def _on_message(self, peer: str, size: int) -> None:
        if self._memory is not None:
            self._memory.on_message(peer, size)

    async def start(self) -> str:
        """Listen, with health NOT_SERVING; returns the address. Raises ``FatalError`` if it cannot be bound."""
        settings = self._settings
        await self.health.start()
        check_bindable(settings)
        try:
            if self._credentials is None:
                port = self.grpc.add_insecure_port(settings.address)
            else:
                port = self.grpc.add_secure_port(settings.address, self._credentials)
            if settings.share_port and settings.uds is not None:
                self.grpc.add_insecure_port(f"unix:{settings.uds}")
        except RuntimeError as error:
            raise FatalError(f"cannot listen on {settings.address}: {error}") from None
        if settings.private_socket is None:
            self.address = join_address(settings.host, port)
            self._connections = ConnectionGuard(port, self._max_connections, self._calls.has_calls)
            self._connections.start()
        await self.grpc.start()
        return self.address

    async def set_serving(self, serving: bool) -> None:
        """Set the health of every service and of the whole server; without effect once a drain began."""
        self._has_served |= serving
        await self.health.set_ready(serving)

    @property
    def open_calls(self) -> int:
        """Calls that gRPC has not released."""
        return self._calls.num_open

    async def run(
        self, work: Callable[[], Coroutine[Any, Any, None]], finish: Callable[[float], Coroutine[Any, Any, None]]
    ) -> int:
        """Start, run ``work()`` (loading, links to peers) beside the server, and return the process's exit code.

        ``drain`` ends it: first ``finish(grace)`` must refuse new requests, finish the present ones within ``grace``
        seconds and end the streams that are still open. Then ``work`` is cancelled if it still runs. An exception of
        ``work`` ends the server and is raised here. Meanwhile the process sends heartbeats, and a watchdog ends it if
        its event loop hangs.
        """
        working: asyncio.Task[None] | None = None
        leaving: asyncio.Task[None] | None = None
        async with heartbeat(lambda: self._has_served):
            with self.drain.on_signals():
                try:
                    await self.start()
                    working = asyncio.create_task(work())
                    await self.drain.wait_begun(working)
                    await self.health.drain()
                    leaving = self._leave_shared_port()
                    await self.drain.run(finish)
                    return self.drain.exit_code
                finally:
                    if working is not None and not working.done():
                        await end_task(working)
                    await self.stop(None if self.drain.cut_short else _STATUS_GRACE)
                    if leaving is not None:
                        await leaving

    def _leave_shared_port(self) -> asyncio.Task[None] | None:
        """Leave a shared port to the others: open calls go on, new ones need a new connection, which another gets."""
        if not self._settings.share_port:
            return None
        return asyncio.create_task(self.grpc.stop(self._settings.drain_grace + _LONGEST_OVERRUN))

    async def stop(self, grace: float | None = None) -> None:
        """End every RPC, after ``grace`` seconds if given, and stop listening."""
        await self.health.drain()
        if self._memory is not None:
            self._memory.stop()
        if self._connections is not None:
            self._connections.stop()
        await self.grpc.stop(grace)
        await self._calls.wait_ended(_STATUS_GRACE)
        remove_socket_file(self._settings)
