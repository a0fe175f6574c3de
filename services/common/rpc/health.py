"""Health of a server, by gRPC and by HTTP. Callers are not authenticated, so their requests are bounded.

Readiness: does the process take requests? A processor without an engine does not, and a restart would not help.
Liveness: does the process make progress? If not, it has to be killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from services.common.telemetry.metrics_endpoint import Page
from services.ring.errors import invalid_field

MAX_NAME_LENGTH = 256
"""Characters of a service's name: gRPC keeps it while a client watches it."""
LIVENESS = "liveness"
"""The service name that liveness probes ask for."""
OnWatch = Callable[[Iterable[tuple[str, str | bytes]]], Callable[[], None]]
"""Called with the metadata of each Watch that begins; what it returns is called at the watch's end."""
_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Health(health.aio.HealthServicer):
    """gRPC's health service, with the additional service name ``LIVENESS`` and a limit on the length of names."""

    def __init__(self, services: Sequence[str], on_watch: OnWatch = lambda _: lambda: None) -> None:
        """``services``: full names; all of them become ready at once."""
        super().__init__()
        self._on_watch = on_watch
        self._services = ("", *services)
        self._liveness = health.aio.HealthServicer()  # separate: a drain ends readiness, not liveness
        self._ready, self._alive, self._draining = False, True, False

    async def start(self) -> None:
        """Begin to answer: alive, not ready."""
        await self.set_ready(False)
        await self._liveness.set(LIVENESS, _SERVING)

    async def set_ready(self, ready: bool) -> None:
        """Set whether requests are taken; without effect once a drain has begun."""
        self._ready = ready and not self._draining
        for service in self._services:
            await self.set(service, _SERVING if ready else _NOT_SERVING)

    async def drain(self) -> None:
        """Report NOT_SERVING from now on."""
        self._ready, self._draining = False, True
        await self.enter_graceful_shutdown()

    async def set_hung(self) -> None:
        """Report from now on that the process is neither ready nor alive: it hangs."""
        self._alive = False
        await self._liveness.set(LIVENESS, _NOT_SERVING)
        await self.drain()

    @property
    def pages(self) -> Mapping[str, Page]:
        """Readiness and liveness as HTTP pages, for probes without gRPC or TLS; called in other threads."""
        return {"/health": _page(lambda: self._ready), "/live": _page(lambda: self._alive)}

    async def Check(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        _check_name(request)
        if request.service == LIVENESS:
            return await self._liveness.Check(request, context)
        return await super().Check(request, context)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        _check_name(request)
        on_end = self._on_watch(context.invocation_metadata() or ())
        try:
            if request.service == LIVENESS:
                return await self._liveness.Watch(request, context)
            return await super().Watch(request, context)
        finally:
            on_end()


def _page(holds: Callable[[], bool]) -> Page:
    return Page(
        "text/plain; charset=utf-8",
        lambda: b"SERVING\n" if holds() else b"NOT_SERVING\n",
        status=lambda: HTTPStatus.OK if holds() else HTTPStatus.SERVICE_UNAVAILABLE,
    )


def _check_name(request: health_pb2.HealthCheckRequest) -> None:
    if (length := len(request.service)) > MAX_NAME_LENGTH:
        raise invalid_field("service", f"{length} characters: expected a name of at most {MAX_NAME_LENGTH}")
