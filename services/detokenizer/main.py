"""The detokenizer process: bind, attach to the engines, serve, drain."""

from __future__ import annotations

import asyncio

import structlog
from ringline.detokenizer.v1 import detokenizer_pb2

from services.common.config.settings import DetokenizerSettings
from services.common.links.channels import Endpoint
from services.common.links.discovery import Discovery, PeerDedup
from services.common.links.engine_link import EngineLink
from services.common.process.drain import wait_until_idle
from services.common.process.memory import freeze_loaded_objects, limit_malloc_retention
from services.common.process.run import begin_process, forbid_imports, new_incarnation, run_service
from services.common.rpc.server import Server
from services.common.security.credentials import dialling_credentials, listening_credentials, service_authorizers
from services.common.telemetry.metrics_endpoint import start_metrics
from services.common.telemetry.tracing import start_tracing
from services.detokenizer.engines import Engines
from services.detokenizer.metrics import DetokenizerMetrics
from services.detokenizer.service import METHOD_ROLES, DetokenizerService
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_INTERVAL
from services.ring.outbox import Outboxes

log = structlog.get_logger(__name__)

DESCRIPTION = detokenizer_pb2.DESCRIPTOR.services_by_name["DetokenizerService"]


def run(settings: DetokenizerSettings) -> int:
    """Run the process; returns its exit code."""
    begin_process(settings)
    forbid_imports()
    limit_malloc_retention()

    async def main() -> int:
        return await _Detokenizer(settings).run()

    return run_service(main)


class _Detokenizer:
    def __init__(self, settings: DetokenizerSettings) -> None:
        server = settings.server
        me = PeerId(settings.name, new_incarnation())
        self._settings = settings
        self._tracing = start_tracing(settings)
        outboxes = Outboxes(settings.readers.max_unread_bytes)
        self._engines = Engines(settings.rollout.max_generations, self._tracing, outboxes)
        dedup = PeerDedup()
        credentials = dialling_credentials(settings)
        self._discovery = Discovery(
            settings.engines,
            lambda address, host: EngineLink(
                Endpoint(address, credentials, host, server.max_message_bytes),
                me,
                self._engines,
                dedup,
                stall_timeout=server.stall_timeout,
            ),
            interval=settings.discovery.dns_refresh_interval,
        )
        self._server = Server(
            server,
            [DESCRIPTION.full_name],
            credentials=listening_credentials(settings, internal=True),
            authorizers=service_authorizers(settings, DESCRIPTION, METHOD_ROLES),
        )
        self._service = DetokenizerService(
            me,
            self._engines.subscribers,
            self._load,
            stall_timeout=server.stall_timeout,
            max_message_bytes=server.max_message_bytes,
            drain_grace=server.drain_grace,
            zone=settings.place.zone,
        )
        self._server.add_service(DESCRIPTION, self._service)
        self._metrics = DetokenizerMetrics()

    async def run(self) -> int:
        self._metrics.open_calls = lambda: self._server.open_calls
        metrics = start_metrics(self._settings, self._metrics.registry, self._server.health.pages)
        try:
            return await self._server.run(self._work, self._drain)
        finally:
            if self._tracing is not None:
                self._tracing.close()
            if metrics is not None:
                metrics.close()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discovery.run())
            self._server.start_memory_guard()
            serving = False
            while True:
                attached = self._engines.attached
                if attached != serving:
                    if serving := attached:
                        freeze_loaded_objects()
                    self._metrics.serving = serving
                    await self._server.set_serving(serving)
                    log.info("serving" if serving else "not serving", address=self._server.address)
                await self._beat()

    async def _beat(self) -> None:
        await asyncio.sleep(BEAT_INTERVAL if self._engines.attached else BEAT_INTERVAL / 10)
        engines, num_live = self._engines, self._engines.push_load()
        self._metrics.model_name = engines.model_name
        self._metrics.update(
            engines.num_requests, engines.decoded_tokens, num_live, len(engines.subscribers), engines.num_generations
        )

    async def _drain(self, grace: float) -> None:
        """Tell processors to send no more requests, and finish the present ones."""
        self._metrics.serving = False
        self._service.drain()
        log.info("drained", left=await wait_until_idle(lambda: self._engines.num_requests, grace))

    def _load(self) -> detokenizer_pb2.Load:
        return detokenizer_pb2.Load(
            live_requests=self._engines.num_requests,
            decoded_tokens=self._engines.decoded_tokens,
        )
