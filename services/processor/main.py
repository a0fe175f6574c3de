"""The processor process: bind, link to engines and detokenizers, serve, drain."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from types import ModuleType

import structlog
from ringline.inference.v1 import inference_pb2

from services.common.config.errors import ExitCode, FatalError
from services.common.config.settings import ProcessorSettings
from services.common.links.channels import Endpoint
from services.common.links.discovery import Discovery, PeerDedup
from services.common.links.engine_link import EngineLink
from services.common.process.drain import wait_until_idle
from services.common.process.memory import freeze_loaded_objects, limit_malloc_retention
from services.common.process.run import begin_process, forbid_imports, new_incarnation, run_service
from services.common.rpc.server import Server
from services.common.security.credentials import certificate_authorizers, dialling_credentials, listening_credentials
from services.common.telemetry.metrics_endpoint import start_metrics
from services.common.telemetry.tracing import start_tracing
from services.processor.adapter_control import AdapterControl
from services.processor.admission.admission import Admission
from services.processor.admission.backlog import Backlog, BacklogLimits
from services.processor.admission.model_choice import ModelChoices
from services.processor.admission.picture_stage import PictureStage
from services.processor.admission.rate_limiter import RateLimiter
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.admission.tokenization_queue import TokenizationQueue
from services.processor.authentication import client_authorizers
from services.processor.detokenizer_link import DetokenizerLink
from services.processor.dispatcher import Dispatcher
from services.processor.failover import Failover
from services.processor.gateways import Gateways
from services.processor.in_flight import InFlightRequests
from services.processor.intake import Intake
from services.processor.link_events import LinkEvents
from services.processor.linked_peers import KnownAddresses, LinkedPeers
from services.processor.live_page.pages import pages
from services.processor.live_page.snapshot import LivePageSnapshot
from services.processor.media.pool import PicturePool
from services.processor.metrics import ProcessorMetrics, ProcessorReading
from services.processor.pooled_output import PooledOutput
from services.processor.served_models import ServedModels
from services.processor.service import InferenceService, SessionLimits
from services.processor.text_output import TextOutput
from services.processor.tracing import RequestTraces
from services.ring.identity import ADAPTERS, PeerId
from services.ring.limits import MAX_POOLED_BYTES
from services.ring.outbox import Outboxes
from services.ring.routing_logic import Routes
from text_core.pictures.limits import PictureLimits

log = structlog.get_logger(__name__)

DESCRIPTION = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
_SESSION_AGE = 1.2
"""A session's maximum age as a multiple of its connection's. gRPC adds up to a tenth to the latter, so by then the
client has another connection."""
_BUDGET_PER_LIVE = 4
"""Requests in flight may take 1/_BUDGET_PER_LIVE of the memory budget, well below the half from which the memory guard
closes connections."""
_BUDGET_PER_PICTURES = 4
"""Pictures of requests may take as much again."""
_MOST_BYTES = 2**31 - 1
"""Of a message of protobuf."""
_MOST_RESULTS = MAX_POOLED_BYTES + (1 << 20)
"""Bytes of a frame with the result of one large input."""
_TICK = 0.05
"""Seconds between checks of liveness, timeouts and waiting requests."""


def run(settings: ProcessorSettings) -> int:
    """Run the process; returns its exit code."""
    begin_process(settings)
    forbid_imports()
    limit_malloc_retention()

    async def main() -> int:
        return await _Processor(settings).run()

    return run_service(main)


def _import_vllm_engine_api() -> ModuleType:
    """Import ``vllm_engine_api.service``; raises ``FatalError`` if its dependencies are not installed."""
    try:
        from services.processor.vllm_engine_api import service
    except ModuleNotFoundError as error:
        raise FatalError(
            f"--vllm-engine-api needs {error.name}: pip install 'ringline-server[smg]'", ExitCode.USAGE
        ) from None
    return service


def _session_limits(settings: ProcessorSettings) -> SessionLimits:
    server = settings.server
    return SessionLimits(
        max_live_requests=settings.max_live_requests,
        max_message_bytes=_received_bytes(settings),
        stall_timeout=server.stall_timeout,
        drain_grace=server.drain_grace,
        max_age=_SESSION_AGE * settings.max_connection_age,
    )


def _received_bytes(settings: ProcessorSettings) -> int:
    """Of the largest message: gRPC's limit knows no pictures. The model's own limits divide it."""
    return min(settings.server.max_message_bytes + settings.media.max_media_bytes, _MOST_BYTES)


def _picture_pool(settings: ProcessorSettings) -> PicturePool:
    given = settings.pictures
    limits = PictureLimits(given.max_picture_bytes, given.max_picture_pixels, given.max_picture_time)
    return PicturePool(limits, given.media_processes)


class _Processor:
    """The process's parts, constructed bottom up: a part calls only those constructed before it."""

    def __init__(self, settings: ProcessorSettings) -> None:
        server = settings.server
        me = PeerId(settings.name, new_incarnation())
        self._settings = settings
        policies = TenantPolicies(settings.auth.tenants_file)
        vllm = _import_vllm_engine_api() if settings.vllm_engine_api else None
        gateways = Gateways()
        services = [DESCRIPTION, *([] if vllm is None else [vllm.DESCRIPTION])]
        self._server = Server(
            replace(server, max_message_bytes=_received_bytes(settings)),
            [service.full_name for service in services],
            credentials=listening_credentials(settings, internal=False),
            authorizers=[*certificate_authorizers(settings, internal=False), *client_authorizers(settings.auth)],
            max_connection_age=settings.max_connection_age,
            on_watch=gateways.watched,
        )
        self._tracing = start_tracing(settings)
        self._metrics = ProcessorMetrics(lambda: self._server.open_calls)
        self._routes = Routes(random.Random(), settings.place.zone)
        self._dedup = PeerDedup()
        self._peers = LinkedPeers(self._routes, self._known_addresses)
        self._models = ServedModels(
            settings.rollout.max_generations,
            self._routes.preferred,
            self._peers.no_route_reason,
            num_missing_engines=lambda: len(self._peers.missing().engines),
            keeps_archives=settings.vllm_engine_api,
            aliases=settings.model_aliases,
        )
        self._choices = ModelChoices(self._models, self._routes.adapters, policies)
        self._queue = TokenizationQueue(
            self._models,
            self._choices,
            policies,
            me,
            route_timeout=settings.patience,
            engine_capacity=self._routes.capacity,
        )
        self._pool = _picture_pool(settings)
        self._pictures = self._picture_stage()
        self._admission = self._make_admission(policies)
        self._dispatcher = Dispatcher(self._peers, self._routes, route_timeout=settings.patience)
        self._in_flight = InFlightRequests(self._models, self._admission, self._dispatcher, self._metrics)
        self._failover = Failover(
            self._in_flight,
            self._dispatcher,
            self._peers,
            self._routes,
            max_crash_resubmits=settings.max_crash_resubmits,
        )
        self._pooled = PooledOutput(self._in_flight, self._dispatcher, self._admission, self._peers, self._metrics)
        self._link_events = self._make_link_events()
        self._intake = Intake(
            me,
            self._admission,
            self._in_flight,
            self._metrics,
            max_live_requests=settings.max_live_requests,
            outboxes=Outboxes(settings.readers.max_unread_bytes),
            traces=RequestTraces(self._tracing),
            gateways=gateways,
        )
        self._discoveries = self._discover_peers(me)
        self._snapshot = LivePageSnapshot(
            me.name, self._peers, self._routes, self._metrics, gateways, self._intake.streams
        )
        service = self._inference_service(policies)
        self._server.add_service(DESCRIPTION, service)
        if vllm is not None:
            self._server.add_service(
                vllm.DESCRIPTION,
                vllm.VllmEngineService(
                    service, self._models, self._intake, self._admission, self._peers, policies, self._metrics
                ),
            )

    def _make_link_events(self) -> LinkEvents:
        text_output = TextOutput(self._in_flight, self._failover, self._admission, self._peers, self._metrics)
        return LinkEvents(self._models, self._routes, self._peers, self._failover, text_output, self._pooled)

    def _inference_service(self, policies: TenantPolicies) -> InferenceService:
        return InferenceService(
            self._models,
            self._intake,
            self._queue,
            self._pictures,
            self._metrics,
            _session_limits(self._settings),
            self._settings.tenant_header,
            policies,
            self._choices,
            AdapterControl(
                self._models,
                self._routes.adapters,
                self._peers,
                policies,
                enabled=self._settings.enable_adapter_control,
            ),
        )

    def _picture_stage(self) -> PictureStage:
        return PictureStage(
            self._pool,
            self._queue,
            self._models,
            self._choices,
            self._metrics,
            max_bytes=self._settings.server.memory_budget // _BUDGET_PER_PICTURES,
            route_timeout=self._settings.patience,
        )

    def _make_admission(self, policies: TenantPolicies) -> Admission:
        settings = self._settings
        return Admission(
            Backlog(BacklogLimits(settings.max_queued_requests, settings.max_queue_time)),
            RateLimiter(policies),
            self._queue,
            self._pictures,
            self._choices,
            max_live_bytes=settings.server.memory_budget // _BUDGET_PER_LIVE,
        )

    def _known_addresses(self) -> KnownAddresses:
        """The discovered addresses, without further addresses of peers that are already linked."""
        return KnownAddresses(*(found.addresses - self._dedup.duplicates for found in self._discoveries))

    def _discover_peers(self, me: PeerId) -> list[Discovery]:
        """Links to engines and detokenizers; they report to ``_link_events``."""
        settings, server = self._settings, self._settings.server
        credentials, max_bytes = dialling_credentials(settings), server.max_message_bytes
        engines = Discovery(
            settings.engines,
            lambda address, host: EngineLink(
                Endpoint(address, credentials, host, max(max_bytes, _MOST_RESULTS)),
                me,
                self._link_events,
                self._dedup,
                stall_timeout=server.stall_timeout,
                capabilities=(ADAPTERS,),
            ),
            interval=settings.discovery.dns_refresh_interval,
        )
        detokenizers = Discovery(
            settings.detokenizers,
            lambda address, host: DetokenizerLink(
                Endpoint(address, credentials, host, max_bytes), me, self._link_events, self._dedup
            ),
            interval=settings.discovery.dns_refresh_interval,
        )
        return [engines, detokenizers]

    async def run(self) -> int:
        metrics = start_metrics(
            self._settings, self._metrics.registry, {**pages(self._snapshot), **self._server.health.pages}
        )
        try:
            return await self._server.run(self._work, self._drain)
        finally:
            self._pool.close()
            self._queue.close()
            self._pooled.close()
            if self._tracing is not None:
                self._tracing.close()
            if metrics is not None:
                metrics.close()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for discovery in self._discoveries:
                tasks.create_task(discovery.run())
            self._server.start_memory_guard()
            serving = False
            while True:
                await asyncio.sleep(_TICK)
                now = time.monotonic()
                self._link_events.check_liveness(now)
                self._failover.tick(now)
                self._admission.tick(now)
                reading = self._reading()
                self._metrics.update(reading)
                self._snapshot.tick(now, reading, self._metrics.serving)
                if model := self._models.newest:
                    self._metrics.model_name = model.limits.name
                if self._routes.any_joined() != serving:
                    if serving := self._routes.any_joined():
                        freeze_loaded_objects()
                    self._metrics.serving = serving
                    await self._server.set_serving(serving)
                    log.info("serving" if serving else "not serving", address=self._server.address)

    def _reading(self) -> ProcessorReading:
        return ProcessorReading(
            live_requests=len(self._in_flight),
            waiting_requests=self._admission.num_waiting,
            engines=len(self._peers.engines),
            detokenizers=len(self._peers.detokenizers),
            suspected=len(self._peers.suspects),
            generations=len(self._models.held),
            failovers={change.value: count for change, count in self._dispatcher.failovers.items()},
            losses=dict(self._peers.losses),
            decisions={decision.value: count for decision, count in self._routes.decisions.items()},
            loads=self._routes.loads(),
            prefixes=len(self._routes.prefixes),
            picture_bytes=self._pictures.held_bytes,
        )

    async def _drain(self, grace: float) -> None:
        """Tell clients to use another processor, and finish the live requests."""
        self._metrics.serving = False
        self._intake.drain()
        log.info("drained", left=await wait_until_idle(lambda: self._intake.num_open, grace))
