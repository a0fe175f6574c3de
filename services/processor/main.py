"""The processor process: bind, link to engines and detokenizers, serve, drain."""

from __future__ import annotations

import asyncio
import random
import time

import structlog
from ringline.inference.v1 import inference_pb2

from services.config.addresses import new_incarnation
from services.config.settings import ProcessorSettings
from services.peers.discovery import Discovery
from services.peers.engine_link import EngineLink
from services.peers.redial import PeerDedup
from services.process.memory import keep_little_free_memory, spare_what_is_loaded
from services.process.run import die_with_parent, forbid_modules, run_service
from services.processor.admission.backlog import Backlog, BacklogLimits
from services.processor.admission.intake import Intake
from services.processor.admission.rate_limiter import RateLimiter
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.admission.tokenization_queue import TokenizationQueue
from services.processor.authentication import client_gate
from services.processor.dashboard.pages import pages
from services.processor.dashboard.snapshot import DashboardSnapshot
from services.processor.detokenizer_link import Subscription
from services.processor.in_flight import InFlightRequests
from services.processor.metrics import ProcessorMetrics, ProcessorReading
from services.processor.peers import Peers
from services.processor.served_models import ServedModels
from services.processor.service import InferenceService, SessionBounds
from services.processor.tracing import RequestTraces
from services.ring.identity import PeerId
from services.ring.outbox import Outboxes
from services.rpc.server import Server, wait_until_idle
from services.security.credentials import certificate_gate, dialling_credentials, listening_credentials
from services.telemetry.logs import configure_logs, warn_of_unknown_variables
from services.telemetry.metrics_endpoint import start_metrics
from services.telemetry.tracing import start_tracing

log = structlog.get_logger(__name__)

DESCRIPTION = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
_SESSION_AGE = 1.2
"""Of a connection's age, a session's: by then gRPC, which adds up to a tenth, takes new calls on another connection."""
_BUDGET_PER_LIVE = 4
"""Of the memory budget, the part that requests under way may take. From half of it on, connections are closed."""
_TICK = 0.05
"""Seconds between looks at who lives and who waits."""


def run(settings: ProcessorSettings) -> int:
    """Run the process; returns its exit code."""
    die_with_parent()
    forbid_modules()
    keep_little_free_memory()
    configure_logs(settings.telemetry, "processor")
    warn_of_unknown_variables()

    async def main() -> int:
        return await _Processor(settings).run()

    return run_service(main)


class _Processor:
    """One life of the process."""

    def __init__(self, settings: ProcessorSettings) -> None:
        server = settings.server
        me = PeerId(settings.name, new_incarnation())
        vocabularies = self._vocabularies = ServedModels(settings.rollout.max_generations)
        self._settings = settings
        self._metrics = ProcessorMetrics()
        self._peers = Peers(vocabularies, random.Random())
        backlog = Backlog(BacklogLimits(settings.max_queued_requests, settings.max_queue_time))
        policies = TenantPolicies(settings.auth.tenants_file)
        self._ring = InFlightRequests(
            self._peers,
            self._metrics,
            backlog,
            patience=settings.patience,
            max_crash_resubmits=settings.max_crash_resubmits,
            max_live_bytes=server.memory_budget // _BUDGET_PER_LIVE,
            meter=RateLimiter(policies),
        )
        self._peers.events = self._ring
        claims = PeerDedup()
        credentials = dialling_credentials(settings)
        limits = server.max_message_bytes
        interval = settings.discovery.dns_refresh_interval
        self._found = [
            Discovery(
                settings.engines,
                lambda address, host: EngineLink(
                    address,
                    me,
                    self._peers,
                    claims,
                    stall_timeout=server.stall_timeout,
                    max_message_bytes=limits,
                    credentials=credentials,
                    server_name=host,
                ),
                interval=interval,
            ),
            Discovery(
                settings.detokenizers,
                lambda address, host: Subscription(
                    address,
                    me,
                    self._peers,
                    claims,
                    max_message_bytes=limits,
                    credentials=credentials,
                    server_name=host,
                ),
                interval=interval,
            ),
        ]
        self._overview = DashboardSnapshot(me.name, self._peers, self._metrics)
        self._desk = TokenizationQueue(
            vocabularies, self._ring, me, patience=settings.patience, seats=lambda: self._peers.seats
        )
        self._server = Server(
            server,
            [DESCRIPTION.full_name],
            credentials=listening_credentials(settings, internal=False),
            interceptors=[*certificate_gate(settings, internal=False), *client_gate(settings.auth)],
            max_connection_age=settings.max_connection_age,
        )
        self._tracing = start_tracing(settings)
        self._intake = Intake(
            me,
            self._ring,
            self._desk,
            self._metrics,
            max_live_requests=settings.max_live_requests,
            outboxes=Outboxes(settings.readers.max_unread_bytes),
            traces=RequestTraces(self._tracing) if self._tracing is not None else None,
        )
        service = InferenceService(
            vocabularies,
            self._intake,
            self._desk,
            self._metrics,
            SessionBounds(
                max_live_requests=settings.max_live_requests,
                max_message_bytes=server.max_message_bytes,
                stall_timeout=server.stall_timeout,
                drain_grace=server.drain_grace,
                max_age=_SESSION_AGE * settings.max_connection_age,
            ),
            settings.tenant_header,
            policies,
        )
        self._server.serve(DESCRIPTION, service)

    async def run(self) -> int:
        self._metrics.open_calls = lambda: self._server.open_calls
        metrics = start_metrics(
            self._settings, self._metrics.registry, {**pages(self._overview), **self._server.health.pages}
        )
        try:
            return await self._server.run(self._work, self._drain)
        finally:
            self._desk.close()
            if self._tracing is not None:
                self._tracing.close()
            if metrics is not None:
                metrics.close()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for peers in self._found:
                tasks.create_task(peers.run())
            self._server.guard_memory()
            serving = False
            while True:
                await asyncio.sleep(_TICK)
                now = time.monotonic()
                self._peers.watch(now)
                self._ring.tick(now)
                self._desk.release()
                reading = self._reading()
                self._metrics.update(reading)
                self._overview.tick(now, reading, self._metrics.serving)
                if vocabulary := self._vocabularies.newest:
                    self._metrics.model_name = vocabulary.limits.name
                if self._peers.ready != serving:
                    if serving := self._peers.ready:
                        spare_what_is_loaded()
                    self._metrics.serving = serving
                    await self._server.set_serving(serving)
                    log.info("serving" if serving else "not serving", address=self._server.address)

    def _reading(self) -> ProcessorReading:
        engines, detokenizers = self._peers.counts()
        return ProcessorReading(
            live_requests=self._ring.num_live,
            waiting_requests=self._ring.backlog.num_waiting,
            engines=engines,
            detokenizers=detokenizers,
            suspected=len(self._peers.suspects),
            generations=len(self._vocabularies),
            failovers=self._ring.failovers,
            losses=dict(self._peers.losses),
            routing=self._peers.routing,
        )

    async def _drain(self, grace: float) -> None:
        """Finish the requests that are there; sessions are told."""
        self._metrics.serving = False
        self._intake.drain()
        log.info("drained", left=await wait_until_idle(lambda: self._intake.num_open, grace))
