"""Failover: retry, resubmit, redirect, replay, and the route timeout.

A request is resubmitted when its engine is lost or silent, redirected when its detokenizer is, and retried when an
engine rejects it but another may accept it. Without a route it waits, until the route timeout. A request that cannot
continue ends with what was delivered.
"""

from __future__ import annotations

import math
import time

import structlog
from ringline.types.v1 import link_pb2

from services.common.rpc.shared_messages import status_from_proto
from services.processor.dispatcher import Dispatcher
from services.processor.in_flight import InFlightRequests
from services.processor.linked_peers import LinkedPeers
from services.processor.request import Request
from services.processor.served_models import no_route
from services.ring.adapters import Adapter
from services.ring.errors import Code, Reason, Status
from services.ring.events import FinishReason
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from services.ring.poison import Blame
from services.ring.routing_logic import Route, Routes

log = structlog.get_logger(__name__)

MAX_REPLAYS = 5
"""Replays without an accepted delta after which a request fails: some peer violates the protocol."""
RETRY_AFTER_MS = 500
"""Delay before a request that was in flight is resubmitted, if a full engine rejected it and named no delay."""
MAX_PICTURES_MISSED = 8
"""Submits in a row for which an engine did not hold the pictures."""
_MISSED_PAUSE = 0.1
"""Seconds before pictures are sent again, more each time: others' pictures may fill the engine's room."""
_TRY_ANOTHER_ENGINE = frozenset({Reason.CAPABILITY_MISSING, Reason.MODEL_GONE, Reason.ADAPTER_GONE})
"""Reasons to try another engine: during a rollout, it may have the capability, model or adapter that the rejecting one
lacks."""
_BLAME_INTERVAL = 0.25
"""Seconds between checks whether engines that died with a request have come back."""


class Failover:
    """Moves the requests in flight, and ends those that cannot continue.

    A ``reason``, here and below, is why a request lost its last route, as human-readable text.
    """

    def __init__(
        self,
        in_flight: InFlightRequests,
        dispatcher: Dispatcher,
        peers: LinkedPeers,
        routes: Routes,
        *,
        max_crash_resubmits: int,
    ) -> None:
        """``max_crash_resubmits``: a request is poison if this many engines died while they computed it."""
        self._in_flight = in_flight
        self._dispatcher = dispatcher
        self._peers = peers
        self._routes = routes
        self._max_crash_resubmits = max_crash_resubmits
        self._revision = -1
        """``Routes.revision`` at the last ``tick``."""
        self._partitions_due = math.inf
        """When to check requests on partitioned pairs even if no route has changed."""

    # Events of peers

    def routes_changed(self) -> None:
        """A pair may have been joined: look for routes for the requests that have none."""
        for request in self._dispatcher.unrouted.items():
            self._route(request, request.route_lost_reason)

    def engine_lost(self, engine: PeerId, *, crashed: bool) -> None:
        """The link to an engine ended; ``crashed`` unless it was draining or had hung."""
        now = time.monotonic()
        for request in self._dispatcher.routed.at_engine(engine):
            self._dispatcher.clear_route(request)
            request.route_timeout.lost(now)
            if crashed:
                request.poison.engine_died(engine, now, computing=request.heard_on_route)
            self._route(request, f"engine {engine.name} was lost")

    def detokenizer_lost(self, detokenizer: PeerId) -> None:
        for request in self._dispatcher.routed.at_detokenizer(detokenizer):
            request.route_timeout.lost(time.monotonic())
            self._route(request, f"detokenizer {detokenizer.name} was lost")

    def rejected(self, rejection: link_pb2.Rejection) -> None:
        """An engine refused a Submit or Redirect: try another route if that may help, else end the request."""
        if (request := self._in_flight.find(rejection.request_id, rejection.epoch)) is None:
            return
        status = status_from_proto(rejection.status)
        if request.resolved.pictures and request.route is not None:
            self._peers.pictures_missed(request.route.engine, request.resolved.pictures)
        if (adapter := request.resolved.needs.adapter) is not None and status.reason is Reason.ADAPTER_GONE:
            if request.route is not None:
                is_new = not request.was_in_flight
                self._routes.adapters.missed(request.route.engine, adapter, is_new=is_new, at=time.monotonic())
            begins = self._routes.adapters.anywhere(adapter, request.resolved.generation, begins=True)
            if not (begins or request.was_in_flight):
                self._in_flight.end(request, FinishReason.ERROR, _replaced(adapter))
                return
        if status.reason is Reason.MEDIA_MISSING:
            self._send_pictures_again(request, status)
            return
        retry = status.code in (Code.UNAVAILABLE, Code.NOT_FOUND) or status.reason in _TRY_ANOTHER_ENGINE
        delay_ms = status.retry_after_ms or 0
        if status.code is Code.RESOURCE_EXHAUSTED and request.was_in_flight:
            # A full engine (its queue or its ledgers) is no reason to end the request.
            retry, delay_ms = True, status.retry_after_ms or RETRY_AFTER_MS
        if not retry:
            self._in_flight.end(request, FinishReason.ERROR, status)
            return
        now = time.monotonic()
        request.retry_at = now + delay_ms / 1000
        self._dispatcher.send_done(request)  # the engine may still have it, under an earlier epoch
        self._dispatcher.clear_route(request)
        request.route_timeout.refused(now)
        self._dispatcher.wait(request, status.message, request.retry_at)

    def _send_pictures_again(self, request: Request, status: Status) -> None:
        """The engine dropped pictures, as it may at any time: they go again before the request."""
        request.pictures_missed += 1
        if request.pictures_missed > MAX_PICTURES_MISSED:
            message = (
                f"{status.message}; sent {request.pictures_missed} times: the engine has too little room; retry later"
            )
            self._in_flight.end(request, FinishReason.ERROR, Status(Code.RESOURCE_EXHAUSTED, message, RETRY_AFTER_MS))
            return
        self._dispatcher.send_done(request)  # the engine may still have it, under an earlier epoch
        now = time.monotonic()
        request.route_timeout.refused(now)
        request.retry_at = now + _MISSED_PAUSE * (request.pictures_missed - 1)
        if request.pictures_missed == 1:
            self._route_anew(request, status.message)
        else:
            self._dispatcher.clear_route(request)
            self._dispatcher.wait(request, status.message, request.retry_at)

    def replay(self, request: Request) -> None:
        """A frame did not fit: have the output replayed; too many replays in a row end the request."""
        if request.request_id in self._dispatcher.unrouted:
            return  # the next route includes a replay
        delivery = request.delivery
        delivery.replays += 1
        log.warning("frames did not continue the output", request_id=request.request_id, redirects=delivery.replays)
        if delivery.replays > MAX_REPLAYS:
            message = (
                f"output frames did not continue what was delivered, {delivery.replays} times in a row: expected at "
                f"most {MAX_REPLAYS}; send the request again"
            )
            self._in_flight.end(request, FinishReason.ERROR, Status(Code.INTERNAL, message))
        elif request.route is not None:
            self._dispatcher.redirect(request, request.route, "frames did not continue the output")

    def tick(self, now: float) -> None:
        """Apply the route timeout, look for routes again, and move requests away from silent peers.

        A request without a route tries again only once it is due or routes have changed. Call a few times a second.
        """
        changed, self._revision = self._revision != self._routes.revision, self._routes.revision
        unrouted = self._dispatcher.unrouted
        due = unrouted.due(now)
        for request in unrouted.items() if changed else due:
            if request.route_timeout.waited(now) > self._dispatcher.route_timeout:
                self._end_without_route(request)
            elif now >= request.retry_at:
                self._route(request, request.route_lost_reason)
            else:
                self._dispatcher.wait(request, request.route_lost_reason, request.retry_at)
        if changed or now > self._partitions_due:
            self._leave_silent_peers(now)

    def _end_without_route(self, request: Request) -> None:
        no_route_reason = self._peers.no_route_reason(request.resolved.needs)
        adapter = request.resolved.needs.adapter
        has_adapter = adapter is None or self._routes.adapters.anywhere(adapter, request.resolved.generation)
        reasons = filter(None, (request.route_lost_reason, no_route_reason))
        served, wanted = self._routes.preferred(), request.resolved.generation
        gone = "" if has_adapter or wanted not in served else str(adapter)
        refused = no_route(served, wanted, self._dispatcher.route_timeout, "; ".join(reasons), gone)
        self._in_flight.end(request, FinishReason.ERROR, refused.status)

    def _leave_silent_peers(self, now: float) -> None:
        """Move requests from suspected peers and partitioned pairs to other routes, if there are any.

        A false alarm is harmless: late output of the old route has an earlier epoch.
        """
        routed, suspects = self._dispatcher.routed, self._peers.suspects
        for peer in suspects:
            for request in routed.at_engine(peer):
                self._resubmit(request, f"engine {peer.name} gave no sign of life")
            for request in routed.at_detokenizer(peer):
                if request.route is not None and request.route.engine not in suspects:
                    self._leave_detokenizer(request, request.route)
        self._partitions_due = math.inf
        for route, since in self._peers.partitioned.items():
            if route.engine in suspects:
                continue
            for request in routed.on(route):
                if not self._leave_detokenizer(request, route) and now - since > BEAT_LIMIT:
                    self._resubmit(request, f"engine {route.engine.name} is heard by no detokenizer")
            if now - since <= BEAT_LIMIT and routed.on(route):  # the pair may be about to join again
                self._partitions_due = min(self._partitions_due, since + BEAT_LIMIT)

    # One request

    def _route(self, request: Request, reason: str) -> None:
        """Route a request: to another detokenizer if its engine is linked, else to another engine."""
        if (adapter := request.resolved.needs.adapter) is not None and request.is_new:
            current = self._routes.adapters.current(request.resolved.generation, adapter.name)
            if current is not None and not self._routes.adapters.anywhere(
                adapter, request.resolved.generation, begins=True
            ):
                self._in_flight.end(request, FinishReason.ERROR, _replaced(adapter))
                return
        if request.route is None or request.route.engine not in self._peers.engines:
            self._route_anew(request, reason)
            return
        engine = request.route.engine
        if (route := self._dispatcher.choose(request, engine)) is not None:
            self._dispatcher.redirect(request, route, reason)
            return
        now = time.monotonic()
        stay_until = now + BEAT_LIMIT - request.route_timeout.waited(now)  # another detokenizer may be about to join
        if now <= stay_until:
            self._dispatcher.wait(request, reason, stay_until)
        elif not self._resubmit(request, f"engine {engine.name} has no detokenizer"):
            self._dispatcher.wait(request, reason)

    def _route_anew(self, request: Request, reason: str) -> None:
        self._dispatcher.clear_route(request)
        error, now = None, time.monotonic()
        blame = request.poison.blame(now, self._max_crash_resubmits, self._peers.engines)
        if blame is Blame.POISON:
            message = f"{request.poison.count} engines died while they had this request; it is not submitted again"
            error = Status(Code.INTERNAL, message, given_reason=Reason.POISON)
        elif blame is Blame.UNSURE:
            self._dispatcher.wait(request, reason, now + _BLAME_INTERVAL)
        else:
            error = self._dispatcher.route(request, reason)
        if error is not None:
            self._in_flight.end(request, FinishReason.ERROR, error)

    def _leave_detokenizer(self, request: Request, route: Route) -> bool:
        """Redirect to another detokenizer of the same engine; returns whether there is one."""
        if (other := self._dispatcher.choose(request, route.engine)) is None:
            return False
        request.route_timeout.lost(time.monotonic())
        reason = f"detokenizer {route.deliver_to} does not hear {route.engine.name}, or is not heard itself"
        self._dispatcher.redirect(request, other, reason)
        return True

    def _resubmit(self, request: Request, reason: str) -> bool:
        """Move a request from an engine that may be alive to another; returns whether there is another."""
        if (route := self._dispatcher.choose(request)) is None:
            return False
        self._dispatcher.send_done(request)
        request.route_timeout.lost(time.monotonic())
        if error := self._dispatcher.submit(request, route, reason):
            self._in_flight.end(request, FinishReason.ERROR, error)
        return True


def _replaced(adapter: Adapter) -> Status:
    """The end of a request that no engine has begun: it should begin with what the name stands for now."""
    message = f"{adapter} was replaced or unloaded before an engine began with it; send the request again"
    return Status(Code.UNAVAILABLE, message, 0, Reason.ADAPTER_GONE)
