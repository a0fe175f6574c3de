"""Routing of requests and failover: retry, resubmit, redirect, replay, and the route timeout.

A request is resubmitted when its engine is lost or silent, redirected when its detokenizer is, and retried when an
engine rejects it but another may accept it. Without a route it waits, until the route timeout. A request that cannot
continue is returned with its error, and its owner ends it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import structlog

from services.processor.dispatcher import Dispatcher
from services.processor.peers import Peers
from services.processor.request import Request
from services.processor.served_models import no_route
from services.ring.deadline_queue import DeadlineQueue
from services.ring.errors import Code, Reason, Status
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from services.ring.poison import Blame
from services.ring.routing_logic import Route, Routes

log = structlog.get_logger(__name__)

Failed = tuple[Request, Status]
"""A request that cannot continue, and its error."""

MAX_REDIRECTS = 5
"""Replays without an accepted delta after which a request fails: some peer violates the protocol."""
RETRY_AFTER_MS = 500
"""Delay before a request that was in flight is submitted again, if a full engine rejected it and named no delay."""
_TRY_ANOTHER_ENGINE = frozenset({Reason.CAPABILITY_MISSING, Reason.MODEL_GONE})
"""Reasons to try another engine: during a rollout, it may have the capability or model that one engine lacks."""
_BLAME_INTERVAL = 0.25
"""Seconds between checks whether engines that died with a request have come back."""


class Failover:
    """Moves the requests of one processor.

    Exhaust the generators, and end each failed request before taking the next: its load then no longer counts.
    """

    def __init__(
        self, dispatcher: Dispatcher, peers: Peers, routes: Routes, *, route_timeout: float, max_crash_resubmits: int
    ) -> None:
        """``route_timeout``: seconds that a request may be without a route, per outage.

        ``max_crash_resubmits``: a request that this many engines were computing when they died is not resubmitted.
        """
        self._dispatcher = dispatcher
        self._peers = peers
        self._routes = routes
        self._route_timeout = route_timeout
        self._max_crash_resubmits = max_crash_resubmits
        self._unrouted: DeadlineQueue[Request] = DeadlineQueue()
        """Requests without a route; due at the route timeout, or earlier to look for a route even if none changed."""
        self._revision = -1
        """``Routes.revision`` at the last ``tick``."""
        self._partitions_due = math.inf
        """When to check requests on partitioned pairs even if no route has changed."""

    # Events of peers

    def routes_changed(self) -> Iterator[Failed]:
        """Look for routes for the requests that have none."""
        for request in self._unrouted.items():
            if error := self.route(request, request.route_lost_reason):
                yield request, error

    def engine_lost(self, engine: PeerId, *, crashed: bool) -> Iterator[Failed]:
        now = time.monotonic()
        for request in self._dispatcher.routed.at_engine(engine):
            self._dispatcher.clear_route(request)
            request.route_timeout.lost(now)
            if crashed:
                request.poison.engine_died(engine, now, computing=request.computing)
            if error := self.route(request, f"engine {engine.name} was lost"):
                yield request, error

    def detokenizer_lost(self, detokenizer: PeerId) -> Iterator[Failed]:
        for request in self._dispatcher.routed.at_detokenizer(detokenizer):
            request.route_timeout.lost(time.monotonic())
            if error := self.route(request, f"detokenizer {detokenizer.name} was lost"):
                yield request, error

    def tick(self, now: float) -> Iterator[Failed]:
        """Apply the route timeout, look for routes again, and move requests away from silent peers.

        A request that found no route tries again once it is due or routes have changed: until then it would find none.
        """
        changed, self._revision = self._revision != self._routes.revision, self._routes.revision
        due = self._unrouted.due(now)
        for request in self._unrouted.items() if changed else due:
            error: Status | None = None
            if request.route_timeout.waited(now) > self._route_timeout:
                error = self._timeout_error(request)
            elif now >= request.retry_at:
                error = self.route(request, request.route_lost_reason)
            else:
                self._wait_for_route(request, request.route_lost_reason, request.retry_at)
            if error:
                yield request, error
        if changed or now > self._partitions_due:
            yield from self._leave_silent_peers(now)

    # One request

    def route(self, request: Request, reason: str) -> Status | None:
        """Give a request a route: another detokenizer if its engine is linked, else another engine.

        ``reason``: why it lost its last route, as human-readable text. Returns an error if it cannot continue.
        """
        if request.route is not None and self._peers.has_engine(request.route.engine):
            return self._route_from(request, request.route.engine, reason)
        return self._route_anew(request, reason)

    def rejected(self, request: Request, status: Status) -> Status | None:
        """An engine rejected a request: it waits for another route if that may help; else its error is returned."""
        retry = status.code in (Code.UNAVAILABLE, Code.NOT_FOUND) or status.reason in _TRY_ANOTHER_ENGINE
        delay_ms = status.retry_after_ms or 0
        if status.code is Code.RESOURCE_EXHAUSTED and request.was_in_flight:
            # A full engine (its queue or its ledgers) is no reason to end the request.
            retry, delay_ms = True, status.retry_after_ms or RETRY_AFTER_MS
        if not retry:
            return status
        now = time.monotonic()
        request.retry_at = now + delay_ms / 1000
        self._dispatcher.send_done(request)  # the engine may still have it, under an earlier epoch
        self._dispatcher.clear_route(request)
        request.route_timeout.refused(now)
        self._wait_for_route(request, status.message, request.retry_at)
        return None

    def replay(self, request: Request) -> Status | None:
        """A frame did not fit: have the output replayed. Returns an error after too many replays in a row."""
        if request.request_id in self._unrouted:
            return None  # the next route includes a replay
        delivery = request.delivery
        delivery.redirects += 1
        log.warning("frames did not continue the output", request_id=request.request_id, redirects=delivery.redirects)
        if delivery.redirects > MAX_REDIRECTS:
            message = (
                f"output frames did not continue what was delivered, {delivery.redirects} times in a row: expected at "
                f"most {MAX_REDIRECTS}; send the request again"
            )
            return Status(Code.INTERNAL, message)
        if request.route is not None:
            self._redirect(request, request.route, "frames did not continue the output")
        return None

    def forget(self, request: Request) -> None:
        self._unrouted.discard(request.request_id)
        self._dispatcher.forget(request)

    def _timeout_error(self, request: Request) -> Status:
        reasons = filter(None, (request.route_lost_reason, self._peers.no_route_reason()))
        wanted = request.resolved.generation
        return no_route(self._routes.preferred(), wanted, self._route_timeout, "; ".join(reasons)).status

    def _leave_silent_peers(self, now: float) -> Iterator[Failed]:
        """Move requests from suspected peers and partitioned pairs to other routes, if there are any.

        A false alarm is harmless: late output of the old route has an earlier epoch.
        """
        routed, suspects = self._dispatcher.routed, self._peers.suspects
        for peer in suspects:
            for request in routed.at_engine(peer):
                _, error = self._resubmit(request, f"engine {peer.name} gave no sign of life")
                if error:
                    yield request, error
            for request in routed.at_detokenizer(peer):
                if request.route is not None and request.route.engine not in suspects:
                    self._leave_detokenizer(request, request.route)
        self._partitions_due = math.inf
        for route, since in self._peers.partitioned.items():
            if route.engine in suspects:
                continue
            for request in routed.on(route):
                if not self._leave_detokenizer(request, route) and now - since > BEAT_LIMIT:
                    _, error = self._resubmit(request, f"engine {route.engine.name} is heard by no detokenizer")
                    if error:
                        yield request, error
            if now - since <= BEAT_LIMIT and routed.on(route):  # the two may be about to join again
                self._partitions_due = min(self._partitions_due, since + BEAT_LIMIT)

    def _leave_detokenizer(self, request: Request, route: Route) -> bool:
        """Redirect to another detokenizer of the same engine; returns whether there is one."""
        if (other := self._dispatcher.choose(request, route.engine)) is None:
            return False
        request.route_timeout.lost(time.monotonic())
        self._redirect(
            request,
            other,
            f"detokenizer {route.detokenizer.name} does not hear {route.engine.name}, or is not heard itself",
        )
        return True

    def _resubmit(self, request: Request, reason: str) -> tuple[bool, Status | None]:
        """Move a request from an engine that may be alive to another one.

        Returns whether there is another one, and the error if the request could not be submitted there.
        """
        if (route := self._dispatcher.choose(request)) is None:
            return False, None
        self._dispatcher.send_done(request)
        request.route_timeout.lost(time.monotonic())
        return True, self._submit(request, route, reason)

    def _route_from(self, request: Request, engine: PeerId, reason: str) -> Status | None:
        if (route := self._dispatcher.choose(request, engine)) is not None:
            self._redirect(request, route, reason)
            return None
        now = time.monotonic()
        stay_until = now + BEAT_LIMIT - request.route_timeout.waited(now)  # another detokenizer may be about to join
        if now <= stay_until:
            self._wait_for_route(request, reason, stay_until)
            return None
        moved, error = self._resubmit(request, f"engine {engine.name} has no detokenizer")
        if not moved:
            self._wait_for_route(request, reason)
        return error

    def _route_anew(self, request: Request, reason: str) -> Status | None:
        self._dispatcher.clear_route(request)
        blame = request.poison.blame(time.monotonic(), self._max_crash_resubmits, self._peers.has_engine)
        if blame is Blame.POISON:
            message = f"{request.poison.count} engines died while they had this request; it is not submitted again"
            return Status(Code.INTERNAL, message, given_reason=Reason.POISON)
        if blame is Blame.UNSURE:
            self._wait_for_route(request, reason, time.monotonic() + _BLAME_INTERVAL)
        elif (route := self._dispatcher.choose(request)) is not None:
            return self._submit(request, route, reason)
        else:
            self._wait_for_route(request, reason)
        return None

    def _submit(self, request: Request, route: Route, reason: str) -> Status | None:
        if (error := self._dispatcher.submit(request, route, reason)) is None:
            self._unrouted.discard(request.request_id)
        return error

    def _redirect(self, request: Request, route: Route, reason: str) -> None:
        self._dispatcher.redirect(request, route, reason)
        self._unrouted.discard(request.request_id)

    def _wait_for_route(self, request: Request, reason: str, due: float = math.inf) -> None:
        """``due``: when to look for a route even if none has changed."""
        request.route_lost_reason = reason
        now = time.monotonic()
        timeout_at = now + self._route_timeout - request.route_timeout.waited(now)
        self._unrouted.put(request.request_id, request, min(due, timeout_at))
