"""The gateway process: bind, watch processors, serve HTTP, drain."""

from __future__ import annotations

import asyncio
import math
import time

import structlog
from ringline import AsyncClient

from services.common.config.settings import GatewaySettings
from services.common.process.drain import Drain, end_task, wait_until_idle
from services.common.process.heartbeat import heartbeat
from services.common.process.memory import freeze_loaded_objects, limit_malloc_retention
from services.common.process.run import begin_process, forbid_imports, run_service
from services.common.telemetry.metrics_endpoint import start_metrics
from services.gateway.app import Gateway
from services.gateway.callers import Callers
from services.gateway.endpoints import ENDPOINTS
from services.gateway.http.load import Load
from services.gateway.http.server import HttpServer
from services.gateway.http.tls import server_tls
from services.gateway.media.fetch import PictureFetcher
from services.gateway.metrics import GatewayMetrics
from services.gateway.openai.errors import OPENAI
from services.gateway.operations import health_pages, operations
from services.gateway.processors import Processors
from services.gateway.readiness import Readiness

log = structlog.get_logger(__name__)

_SHARE_OF_BODIES = 4
"""Request bodies may take 1/_SHARE_OF_BODIES of the memory budget."""
_STATUS_GRACE = 0.5
"""Seconds after the drain to send answers that say they were cut short."""
_TICK = 0.1
_SILENCE = 5.0
"""Seconds after the start until the log says that no processor serves: a warning if none is found."""


def run(settings: GatewaySettings) -> int:
    """Run the process; returns its exit code."""
    begin_process(settings)
    forbid_imports()
    limit_malloc_retention()

    async def main() -> int:
        processors = Processors(settings)
        async with processors.client() as client:
            return await GatewayProcess(settings, processors, client).run()

    return run_service(main)


class GatewayProcess:
    """The parts of the process."""

    def __init__(self, settings: GatewaySettings, processors: Processors, client: AsyncClient) -> None:
        server = settings.server
        self._settings = settings
        self._drain = Drain(server.drain_grace)
        self.load = Load(
            max_requests=server.max_calls,
            max_connections_per_client=server.max_connections_per_client,
            max_body_bytes=server.memory_budget // _SHARE_OF_BODIES,
        )
        self.callers = Callers(client, settings.tenant_header)
        self._readiness = Readiness(processors)
        self.metrics = GatewayMetrics()
        gateway = Gateway(
            self.callers,
            self.load,
            self.metrics,
            max_body_bytes=server.max_message_bytes,
            max_media_bytes=settings.media.max_media_bytes,
            cors_origins=settings.cors_origins,
            ring_serves=lambda: self._readiness.ready,
            pictures=PictureFetcher(settings.allowed_media_hosts),
        )
        app = gateway.application(ENDPOINTS, operations(self._is_serving, self.metrics.registry))
        self.server = HttpServer(
            server, app, self.load, OPENAI.error, tls=server_tls(settings), on_refusal=self.metrics.request_refused
        )
        self.metrics.connections = lambda: self.server.num_connections
        self.metrics.requests_under_way = lambda: self.load.num_requests
        self.metrics.callers = lambda: len(self.callers)

    def _is_serving(self) -> bool:
        return self._readiness.ready and not self.load.draining

    async def run(self) -> int:
        """Serve until a signal; returns the exit code."""
        metrics = start_metrics(self._settings, self.metrics.registry, health_pages(self._is_serving))
        working: asyncio.Task[None] | None = None
        try:
            async with heartbeat(lambda: working is not None):
                with self._drain.on_signals():
                    await self.server.start()
                    working = asyncio.create_task(self._work())
                    await self._drain.wait_begun(working)
                    self.load.draining = True
                    await self._drain.run(self._finish)
                    return self._drain.exit_code
        finally:
            self.load.draining = True
            if working is not None:
                await end_task(working)
            await self.callers.close()
            await self.server.stop(0.0 if self._drain.cut_short else _STATUS_GRACE)
            if metrics is not None:
                metrics.close()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._readiness.run())
            serving, told_at = False, time.monotonic() + _SILENCE
            while True:
                if self._is_serving() != serving:
                    if serving := not serving:
                        freeze_loaded_objects()
                        told_at = math.inf
                    self.metrics.serving = serving
                    log.info("serving" if serving else "not serving", address=self.server.address)
                if not serving and time.monotonic() > told_at:
                    processors = list(self._settings.processors)
                    if self._readiness.found:  # an engine may load its model for minutes
                        log.info("no model is served yet", processors=processors)
                    else:
                        log.warning("no processor serves yet", processors=processors)
                    told_at = math.inf
                await asyncio.sleep(_TICK)

    async def _finish(self, grace: float) -> None:
        """Refuse new requests, and finish those under way."""
        self.metrics.serving = False
        self.server.leave_shared_port()
        self.server.close_idle()
        log.info("drained", left=await wait_until_idle(lambda: self.load.num_requests, grace))
