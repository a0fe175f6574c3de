"""The life of a gRPC server: bind, load, serve, drain, stop.

Health says NOT_SERVING until the service says otherwise, and again from the first moment of a drain. SIGTERM and
SIGINT drain; a second signal ends at once.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.config.addresses import host_and_port, join_address
from services.config.errors import ExitCode, FatalError
from services.config.settings import ServerSettings
from services.process.heartbeat import heartbeat
from services.rpc.calls import Calls
from services.rpc.connections import ConnectionGuard, most_connections
from services.rpc.error_interceptor import ErrorInterceptor
from services.rpc.handlers import rpc_handlers
from services.rpc.health import Health
from services.rpc.listening import check_listenable, remove_socket_file
from services.rpc.memory_guard import MemoryGuard
from services.rpc.transport import server_options

log = structlog.get_logger()

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LAST_WORDS = 0.5
"""Seconds for handlers that are returning to send their status, after the drain."""

_DRAIN_MARGIN = 2.0
"""Seconds beyond its grace before a drain that does not return is given up."""
_INTERVAL = 0.05


class Server:
    """One grpc.aio server with health, reflection and the interceptor of every server of the ring.

    Register servicers with ``serve``, then either ``start()`` and ``stop()``, or ``run()`` for a process's whole life.
    """

    def __init__(
        self,
        settings: ServerSettings,
        services: Sequence[str],
        *,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        max_connection_age: float | None = None,
    ) -> None:
        """``services`` are the full names of the services that will be registered. Needs a running event loop.

        Without ``credentials`` it speaks plain text. ``interceptors`` come after its own. ``max_connection_age``, in
        seconds: after that clients make new calls on another connection, and those under way go on.
        """
        self._settings = settings
        self._max_connections = most_connections(settings.max_connections)
        self.health = Health(services)
        self._stopping = asyncio.Event()
        self._cut = asyncio.Event()
        self._exit_code: int = ExitCode.OK
        self._has_served = False
        self._grace = settings.drain_grace
        self.address = settings.address
        """Where it listens; after ``start`` with the port that was taken."""
        self._calls = Calls(settings.max_calls, settings.max_connections_per_client)
        self._memory: MemoryGuard | None = None
        self._connections: ConnectionGuard | None = None
        self._credentials = credentials
        guard = ErrorInterceptor(self._calls, settings.stall_timeout, self._called)
        self.grpc = grpc.aio.server(
            interceptors=[guard, *interceptors],
            options=server_options(settings, self._max_connections, max_connection_age),
        )
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)

    def serve(self, service: ServiceDescriptor, servicer: object) -> None:
        """Answer the RPCs of a service; see ``rpc_handlers``."""
        self.grpc.add_generic_rpc_handlers((rpc_handlers(service, servicer, self._delivered),))

    def guard_memory(self, beside: int = 0) -> None:
        """Keep the process within its budget, beside so many bytes that it has anyway. Call it once it listens.

        On a unix socket no connection is closed: Linux does not count what came over it. Whoever is let in by its
        file's permissions is trusted.
        """
        port = host_and_port(self.address)[1] if self._settings.uds is None else None
        self._memory = MemoryGuard(port, self._settings.memory_budget, beside)
        self._memory.start()

    def _called(self, peer: str, metadata_bytes: int) -> None:
        if self._memory is not None:
            self._memory.called(peer, metadata_bytes)

    def _delivered(self, peer: str, size: int) -> None:
        if self._memory is not None:
            self._memory.delivered(peer, size)

    async def start(self) -> str:
        """Listen, NOT_SERVING; return the address. Raise ``FatalError`` if it cannot be listened on."""
        await self.health.start()
        check_listenable(self._settings)
        try:
            port = self._bind()
        except RuntimeError as error:
            raise FatalError(f"cannot listen on {self._settings.address}: {error}") from None
        if self._settings.uds is None:
            self.address = join_address(self._settings.host, port)
            self._connections = ConnectionGuard(port, self._max_connections, self._calls.is_busy)
            self._connections.start()
        await self.grpc.start()
        return self.address

    def _bind(self) -> int:
        if self._credentials is None:
            return self.grpc.add_insecure_port(self._settings.address)
        return self.grpc.add_secure_port(self._settings.address, self._credentials)

    async def set_serving(self, serving: bool) -> None:
        """What health says of every service here, and of the whole server; final once a drain began."""
        self._has_served |= serving
        await self.health.set_ready(serving)

    @property
    def open_calls(self) -> int:
        """Calls that gRPC has not let go of."""
        return self._calls.num_open

    def request_stop(self, exit_code: int = ExitCode.OK, grace: float | None = None) -> None:
        """Begin to drain, for ``grace`` seconds (default: the settings'), and then let ``run`` return ``exit_code``.

        Only the first request counts. Call it on the event loop.
        """
        if not self._stopping.is_set():
            self._exit_code = exit_code
            self._grace = self._settings.drain_grace if grace is None else grace
            self._stopping.set()

    async def run(
        self, work: Callable[[], Coroutine[Any, Any, None]], drain: Callable[[float], Coroutine[Any, Any, None]]
    ) -> int:
        """Start, run ``work()`` (loading, links to peers) beside the server, and return the process's exit code.

        Ends after a signal or ``request_stop``: first ``drain(grace)`` runs, which must take nothing new, finish what
        is there within ``grace`` seconds and end the streams that are still open; then ``work`` is cancelled. It may
        also have returned long before. What ``work`` raises ends the server and is raised here. All that time the
        process gives signs of life; it is ended if its event loop hangs.
        """
        async with heartbeat(lambda: self._has_served):
            return await self._run(work, drain)

    async def _run(
        self, work: Callable[[], Coroutine[Any, Any, None]], drain: Callable[[float], Coroutine[Any, Any, None]]
    ) -> int:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        stopping = loop.create_task(self._stopping.wait())
        working: asyncio.Task[None] | None = None
        try:
            await self.start()
            working = loop.create_task(work())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            await stopping
            await self._drain(drain)
            return self._exit_code
        finally:
            stopping.cancel()
            if working is not None and not working.done():
                await _end(working)
            await self.stop(None if self._cut.is_set() else _LAST_WORDS)
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    async def stop(self, grace: float | None = None) -> None:
        """End every RPC, after ``grace`` seconds if given, and stop listening."""
        await self.health.drain()
        if self._memory is not None:
            self._memory.stop()
        if self._connections is not None:
            self._connections.stop()
        await self.grpc.stop(grace)
        await self._calls.wait_ended(_LAST_WORDS)
        remove_socket_file(self._settings)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("stopping at once", signal=number.name)
            self._exit_code = 128 + number
            self._cut.set()
        else:
            log.info("draining", signal=number.name, grace=self._settings.drain_grace)
            self.request_stop()

    async def _drain(self, drain: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        await self.health.drain()
        draining = asyncio.create_task(drain(self._grace))
        cut = asyncio.create_task(self._cut.wait())
        await asyncio.wait({draining, cut}, timeout=self._grace + _DRAIN_MARGIN, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done() and not self._cut.is_set():
            log.warning("the drain did not end in time", grace=self._grace)
        await _end(cut)
        await _end(draining)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` unless it is done, and log what it raised meanwhile."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    except Exception:
        log.exception("failed while stopping")


async def wait_until_idle(busy: Callable[[], int], grace: float) -> int:
    """Wait until ``busy()`` is 0, for at most ``grace`` seconds; returns what it is then."""
    end = time.monotonic() + grace
    while busy() and time.monotonic() < end:  # noqa: ASYNC110 - once in a life, over state of several owners
        await asyncio.sleep(_INTERVAL)
    return busy()
