"""A processor without links, server and settings: its parts, put together as ``services.processor.main`` does."""

from __future__ import annotations

import random
from collections.abc import Callable

from services.processor.admission.admission import MAX_LIVE_BYTES, Admission
from services.processor.admission.backlog import Backlog, BacklogLimits
from services.processor.admission.model_choice import ModelChoices
from services.processor.admission.picture_stage import PictureStage
from services.processor.admission.rate_limiter import RateLimiter
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.admission.tokenization_queue import MAX_WAITING_BYTES, TokenizationQueue
from services.processor.dispatcher import Dispatcher
from services.processor.failover import Failover
from services.processor.gateways import Gateways
from services.processor.in_flight import InFlightRequests
from services.processor.intake import Intake
from services.processor.link_events import LinkEvents
from services.processor.linked_peers import LinkedPeers
from services.processor.media.pool import PicturePool
from services.processor.metrics import ProcessorMetrics
from services.processor.pooled_output import PooledOutput
from services.processor.served_models import ServedModels
from services.processor.text_output import TextOutput
from services.processor.tracing import RequestTraces
from services.ring.identity import PeerId
from services.ring.outbox import Outboxes
from services.ring.poison import MAX_CRASH_RESUBMITS
from services.ring.routing_logic import Routes
from text_core.pictures.limits import PictureLimits

NO_LIMITS = BacklogLimits(max_requests=1 << 20, max_seconds=1e9)
ROUTE_TIMEOUT = 60.0


class ProcessorCore:
    """Its models are made by ``models`` of the routes' preferred generations."""

    def __init__(
        self,
        models: Callable[[Routes], ServedModels],
        *,
        route_timeout: float = ROUTE_TIMEOUT,
        max_crash_resubmits: int = MAX_CRASH_RESUBMITS,
        backlog_limits: BacklogLimits = NO_LIMITS,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_live_requests: int = 1000,
        max_live_bytes: int = MAX_LIVE_BYTES,
        engine_capacity: Callable[[], int | None] = lambda: None,
        outboxes: Outboxes | None = None,
        pool: PicturePool | None = None,
        max_picture_bytes: int = 1 << 30,
    ) -> None:
        self.me = PeerId("processor", 1)
        self.metrics = ProcessorMetrics()
        self.routes = Routes(random.Random(0))
        self.models = models(self.routes)
        self.peers = LinkedPeers(self.routes)
        self.policies = TenantPolicies(None)
        self.rate_limiter = RateLimiter(self.policies)
        self.choices = ModelChoices(self.models, self.routes.adapters, self.policies)
        self.queue = TokenizationQueue(
            self.models,
            self.choices,
            self.policies,
            self.me,
            route_timeout=route_timeout,
            max_waiting_bytes=max_waiting_bytes,
            engine_capacity=engine_capacity,
        )
        self.backlog = Backlog(backlog_limits)
        self.pictures = PictureStage(
            pool or PicturePool(PictureLimits()),
            self.queue,
            self.models,
            self.choices,
            self.metrics,
            max_bytes=max_picture_bytes,
            route_timeout=route_timeout,
        )
        self.admission = Admission(
            self.backlog, self.rate_limiter, self.queue, self.pictures, self.choices, max_live_bytes=max_live_bytes
        )
        self.dispatcher = Dispatcher(self.peers, self.routes, route_timeout=route_timeout)
        self.in_flight = InFlightRequests(self.models, self.admission, self.dispatcher, self.metrics)
        self.failover = Failover(
            self.in_flight, self.dispatcher, self.peers, self.routes, max_crash_resubmits=max_crash_resubmits
        )
        self.text_output = TextOutput(self.in_flight, self.failover, self.admission, self.peers, self.metrics)
        self.pooled_output = PooledOutput(self.in_flight, self.dispatcher, self.admission, self.peers, self.metrics)
        self.link_events = LinkEvents(
            self.models, self.routes, self.peers, self.failover, self.text_output, self.pooled_output
        )
        self.gateways = Gateways()
        self.intake = Intake(
            self.me,
            self.admission,
            self.in_flight,
            self.metrics,
            max_live_requests=max_live_requests,
            outboxes=outboxes or Outboxes(),
            traces=RequestTraces(None),
            gateways=self.gateways,
        )
