"""Routing and rerouting of requests: the first Submit, the resubmit when an engine is lost, the Redirect when a
detokenizer is, the replay of lost frames, and the wait while there is no route (until the route timeout).

A request that cannot go on is returned with its error, and its owner ends it.
"""

from __future__ import annotations

import enum
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import structlog
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import sampling_pb2

from services.processor.peers import Peers
from services.processor.request import Request
from services.processor.served_models import no_route
from services.ring.deadline_queue import DeadlineQueue
from services.ring.errors import Code, Reason, Status, invalid_field
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from services.ring.poison import Blame
from services.ring.routes import Route, RouteIndex, Routes

log = structlog.get_logger(__name__)

Failed = tuple[Request, Status]
"""A request that cannot go on, and its error."""

MAX_REDIRECTS = 5
"""Replays in a row, because frames did not fit, after which a request fails: some peer breaks the protocol."""
_BLAME_INTERVAL = 0.25
"""Seconds between checks whether engines that died with a request have come back."""


class Change(enum.Enum):
    """What a failover changed for a request."""

    ENGINE = "engine"
    """It was submitted again, to another engine or the next life of the same one."""
    DETOKENIZER = "detokenizer"
    """It is computed where it was, and decoded elsewhere."""
    REPLAY = "replay"
    """Neither: its output was requested again, because some was lost."""


class Router:
    """The routes of one processor's requests.

    Generators must be consumed, and each failed request ended before the next is taken: its load then counts no more.
    """

    def __init__(self, peers: Peers, routes: Routes, *, route_timeout: float, max_crash_resubmits: int) -> None:
        """``route_timeout``: seconds that a request may be without a route, per outage.

        ``max_crash_resubmits``: a request that this many engines computed when they died is submitted no more.
        """
        self._peers = peers
        self._routes = routes
        self._route_timeout = route_timeout
        self._max_crash_resubmits = max_crash_resubmits
        self._routed: RouteIndex[Request] = RouteIndex()
        self._unrouted: DeadlineQueue[Request] = DeadlineQueue()
        """Requests without a route; due when to look for one though nothing has changed, or at the route timeout."""
        self._revision = -1
        """Of the routes at the last look at unrouted requests and suspects."""
        self._partitions_due = math.inf
        """When to look at requests on partitioned pairs though nothing has changed."""
        self.failovers: Counter[Change] = Counter(dict.fromkeys(Change, 0))

    # Events of peers

    def routes_changed(self) -> Iterator[Failed]:
        """Look for routes for the requests that have none."""
        for request in self._unrouted.items():
            if error := self.route(request, request.route_lost_reason):
                yield request, error

    def engine_lost(self, engine: PeerId, *, crashed: bool) -> Iterator[Failed]:
        """Move the requests of an engine."""
        now = time.monotonic()
        for request in self._routed.at_engine(engine):
            self._clear_route(request)
            request.route_timeout.lost(now)
            if crashed:
                request.poison.engine_died(engine, now, computing=request.computing)
            if error := self.route(request, f"engine {engine.name} was lost"):
                yield request, error

    def detokenizer_lost(self, detokenizer: PeerId) -> Iterator[Failed]:
        """Move the requests of a detokenizer."""
        for request in self._routed.at_detokenizer(detokenizer):
            request.route_timeout.lost(time.monotonic())
            if error := self.route(request, f"detokenizer {detokenizer.name} was lost"):
                yield request, error

    def tick(self, now: float) -> Iterator[Failed]:
        """Apply the route timeout, look for routes again, and move requests away from silent peers.

        A request that found no route is looked at again only when routes have changed: before, it would find none.
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

    def numerics(self, engine: PeerId) -> str:
        """The numerics of an engine; empty if it is no longer linked."""
        return self._peers.numerics(engine)

    def route(self, request: Request, reason: str) -> Status | None:
        """Give a request a route: another detokenizer if its engine is linked, else another engine.

        ``reason``: why it lost its last route, for people. Returns an error if it cannot go on.
        """
        if request.route is not None and self._peers.has_engine(request.route.engine):
            return self._route_from(request, request.route.engine, reason)
        return self._route_anew(request, reason)

    def replay(self, request: Request) -> Status | None:
        """A frame did not fit: have the output sent again from what was delivered. Returns an error after too many."""
        if request.request_id in self._unrouted:
            return None  # its next route brings a replay
        delivery = request.delivery
        delivery.redirects += 1
        log.warning("frames did not fit", request_id=request.request_id, redirects=delivery.redirects)
        if delivery.redirects > MAX_REDIRECTS:
            return Status(Code.INTERNAL, f"its frames did not fit {delivery.redirects} times")
        if request.route is not None:
            self._redirect(request, request.route, "frames did not fit")
        return None

    def refused(self, request: Request, reason: str) -> None:
        """Its engine refused it: it waits for another route, at least until ``retry_at``."""
        self._send_done(request)  # the engine may still have it, under an earlier epoch
        self._clear_route(request)
        request.route_timeout.refused(time.monotonic())
        self._wait_for_route(request, reason, request.retry_at)

    def forget(self, request: Request) -> None:
        """It has ended: its engine may forget it, and nothing of it stays here."""
        self._unrouted.discard(request.request_id)
        self._send_done(request)
        self._clear_route(request)
        self._routes.release(request.request_id, request.cached_prefixes())

    def _timeout_error(self, request: Request) -> Status:
        status = no_route(self._routes.preferred(), request.resolved.generation, self._route_timeout).status
        return replace(status, message=f"{status.message}: {request.route_lost_reason}")

    def _leave_silent_peers(self, now: float) -> Iterator[Failed]:
        """Move requests from suspected peers and partitioned pairs, as far as there are other routes.

        A false alarm is harmless: what the old route still sends is of an earlier epoch.
        """
        suspects = self._peers.suspects
        for peer in suspects:
            for request in self._routed.at_engine(peer):
                _, error = self._resubmit(request, f"engine {peer.name} gave no sign of life")
                if error:
                    yield request, error
            for request in self._routed.at_detokenizer(peer):
                if request.route is not None and request.route.engine not in suspects:
                    self._leave_detokenizer(request, request.route)
        self._partitions_due = math.inf
        for route, since in self._peers.partitioned.items():
            if route.engine in suspects:
                continue
            for request in self._routed.on(route):
                if not self._leave_detokenizer(request, route) and now - since > BEAT_LIMIT:
                    _, error = self._resubmit(request, f"engine {route.engine.name} is heard by no detokenizer")
                    if error:
                        yield request, error
            if now - since <= BEAT_LIMIT and self._routed.on(route):  # the two may be about to join again
                self._partitions_due = min(self._partitions_due, since + BEAT_LIMIT)

    def _leave_detokenizer(self, request: Request, route: Route) -> bool:
        """Redirect to another detokenizer of the same engine; returns whether there is one."""
        if (other := self._choose(request, route.engine)) is None:
            return False
        request.route_timeout.lost(time.monotonic())
        self._redirect(request, other, f"detokenizer {route.detokenizer.name} does not hear, or is not heard")
        return True

    def _resubmit(self, request: Request, reason: str) -> tuple[bool, Status | None]:
        """Leave an engine that may be alive; returns whether there is another one, and an error if it failed there."""
        if (route := self._choose(request)) is None:
            return False, None
        self._send_done(request)
        request.route_timeout.lost(time.monotonic())
        return True, self._submit(request, route, reason)

    def _route_from(self, request: Request, engine: PeerId, reason: str) -> Status | None:
        if (route := self._choose(request, engine)) is not None:
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
        self._clear_route(request)
        blame = request.poison.blame(time.monotonic(), self._max_crash_resubmits, self._peers.has_engine)
        if blame is Blame.POISON:
            message = f"{request.poison.count} engines died while they had this request"
            return Status(Code.INTERNAL, message, given_reason=Reason.POISON)
        if blame is Blame.UNSURE:
            self._wait_for_route(request, reason, time.monotonic() + _BLAME_INTERVAL)
        elif (route := self._choose(request)) is not None:
            return self._submit(request, route, reason)
        else:
            self._wait_for_route(request, reason)
        return None

    def _choose(self, request: Request, engine: PeerId | None = None) -> Route | None:
        resolved = request.resolved
        return self._routes.choose(
            request.request_id,
            resolved.generation,
            resolved.prefixes,
            choices=len(request.delivery.unfinished()),
            engine=engine,
        )

    def _wait_for_route(self, request: Request, reason: str, due: float = math.inf) -> None:
        """``due``: when to look for a route though nothing has changed."""
        request.route_lost_reason = reason
        now = time.monotonic()
        timeout_at = now + self._route_timeout - request.route_timeout.waited(now)
        self._unrouted.put(request.request_id, request, min(due, timeout_at))

    def _set_route(self, request: Request, route: Route) -> None:
        request.route = route
        self._routed.put(request.request_id, request, route)
        request.route_timeout.routed(time.monotonic())
        self._unrouted.discard(request.request_id)

    def _clear_route(self, request: Request) -> None:
        request.route = None
        self._routed.discard(request.request_id)

    def _submit(self, request: Request, route: Route, reason: str) -> Status | None:
        submit = submit_of(request, route.detokenizer.name)
        if (size := submit.ByteSize()) > (most := self._peers.max_command_bytes(route.engine)):
            # Sent all the same, it would end the link, and with it every other request there.
            problem = f"with what was delivered, {size} bytes on the way to an engine: expected at most {most}"
            return invalid_field("prompt", problem, reason=Reason.TOO_LARGE).status
        moved = submit.epoch > 1
        self._record(request, route, Change.ENGINE if moved else None, reason)
        request.route_lost_reason = reason if moved else ""
        request.computing = request.started_sent = False
        self._set_route(request, route)
        self._peers.send(route.engine, engine_pb2.Command(submit=submit))
        return None

    def _redirect(self, request: Request, route: Route, reason: str) -> None:
        redirect = redirect_of(request, route.detokenizer.name)
        self._record(request, route, Change.REPLAY if route == request.route else Change.DETOKENIZER, reason)
        self._set_route(request, route)
        self._peers.send(route.engine, engine_pb2.Command(redirect=redirect))

    def _record(self, request: Request, route: Route, change: Change | None, reason: str) -> None:
        """Count and trace a routing; ``change`` is None for a request's first."""
        if change is not None:
            self.failovers[change] += 1
        if request.trace is not None:
            changed = change.value if change is not None else ""
            request.trace.routed(route, request.delivery.epoch, changed, reason)

    def _send_done(self, request: Request) -> None:
        if request.route is not None:
            done = engine_pb2.Done(request_id=request.request_id, epoch=request.delivery.epoch)
            self._peers.send(request.route.engine, engine_pb2.Command(done=done))


def submit_of(request: Request, deliver_to: str) -> engine_pb2.Submit:
    """The Submit that begins a request, or resumes it from what was delivered, under a new epoch."""
    submit = request.resolved.submit
    submit.request_id = request.request_id
    submit.epoch = request.delivery.next_epoch()
    submit.deliver_to = deliver_to
    submit.output_context = request.resolved.output_context
    if request.deadline is not None:
        submit.timeout_ms = max(1, round((request.deadline - time.monotonic()) * 1000))
    unfinished = request.delivery.unfinished()
    if any(unfinished.values()) or len(unfinished) < request.resolved.num_choices:
        submit.resume.extend(
            sampling_pb2.ResumedChoice(choice=choice, token_ids=ids) for choice, ids in unfinished.items()
        )
    return submit


def redirect_of(request: Request, deliver_to: str) -> engine_pb2.Redirect:
    """The Redirect that has the engine's log sent again from what was delivered, under a new epoch."""
    delivered = request.delivery.delivered()
    return engine_pb2.Redirect(
        request_id=request.request_id,
        epoch=request.delivery.next_epoch(),
        deliver_to=deliver_to,
        delivered=[engine_pb2.Delivered(choice=choice, count=count) for choice, count in delivered.items()],
    )
