"""Sends requests to engines by Submit and Redirect, and tracks which request is on which route.

``services.ring.routing_logic`` chooses routes; ``failover`` decides when a request changes its route. Requests without
a route wait here.
"""

from __future__ import annotations

import enum
import math
import time
from collections import Counter

from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import sampling_pb2

from services.processor.linked_peers import LinkedPeers
from services.processor.request import Request
from services.ring.deadline_queue import DeadlineQueue
from services.ring.errors import Reason, Status, invalid_field
from services.ring.identity import PeerId
from services.ring.routing_logic import Route, RouteIndex, Routes


class Change(enum.Enum):
    """What a failover changed for a request."""

    ENGINE = "engine"
    """It was resubmitted, to another engine or to the same one after a restart."""
    DETOKENIZER = "detokenizer"
    """It stays on its engine, and another detokenizer decodes it."""
    REPLAY = "replay"
    """Engine and detokenizer stay: lost output was requested again."""


class Dispatcher:
    """Sends the processor's requests on routes."""

    def __init__(self, peers: LinkedPeers, routes: Routes, *, route_timeout: float) -> None:
        """``route_timeout``: seconds that a request may lack a route, per outage."""
        self._peers = peers
        self._routes = routes
        self.route_timeout = route_timeout
        self.routed: RouteIndex[Request] = RouteIndex()
        """Requests with a route."""
        self.unrouted: DeadlineQueue[Request] = DeadlineQueue()
        """Requests without a route; due at the route timeout, or earlier to look for a route even if none changed."""
        self.failovers: Counter[Change] = Counter(dict.fromkeys(Change, 0))

    def route(self, request: Request, reason: str) -> Status | None:
        """Submit a request on the best route; without one, it waits. Returns ``submit``'s error."""
        if (route := self.choose(request)) is not None:
            return self.submit(request, route, reason)
        self.wait(request, reason)
        return None

    def wait(self, request: Request, reason: str, due: float = math.inf) -> None:
        """Let a request wait for a route; ``due``: when to look again even if routes are unchanged."""
        request.route_lost_reason = reason
        now = time.monotonic()
        timeout_at = now + self.route_timeout - request.route_timeout.waited(now)
        self.unrouted.put(request.request_id, request, min(due, timeout_at))

    def choose(self, request: Request, engine: PeerId | None = None) -> Route | None:
        """Choose a route, on ``engine`` if given, and count the request in its load. None if there is none."""
        resolved = request.resolved
        return self._routes.choose(
            request.request_id,
            resolved.generation,
            resolved.prefixes,
            choices=len(request.delivery.unfinished()),
            engine=engine,
            needs=resolved.needs,
            begins=request.is_new,
        )

    def submit(self, request: Request, route: Route, reason: str) -> Status | None:
        """Begin a request at an engine, or resume it there after the delivered output.

        ``reason``: why it left its last route. Returns an error if the message is larger than the engine accepts.
        """
        submit = next_submit(request, route.deliver_to)
        if (size := submit.ByteSize()) > (most := self._peers.engines[route.engine].link.max_command_bytes):
            # A message that is too large would end the link, and every other request on it.
            field, what = ("prompt", " with the output so far") if submit.prompt_token_ids else ("inputs", "")
            problem = f"{size} bytes{what}: expected at most {most}, the largest message the engine takes"
            return invalid_field(field, problem, reason=Reason.TOO_LARGE).status
        moved = submit.epoch > 1 and not request.pictures_missed
        self._record(request, route, Change.ENGINE if moved else None, reason)
        request.route_lost_reason = reason if moved else ""
        request.heard_on_route = request.started_sent = False
        self._set_route(request, route)
        self._peers.submit(route.engine, submit, list(request.resolved.pictures.values()))
        return None

    def redirect(self, request: Request, route: Route, reason: str) -> None:
        """Have the engine replay a request's output to a detokenizer, which skips the part already delivered."""
        delivered = request.delivery.delivered()
        redirect = engine_pb2.Redirect(
            request_id=request.request_id,
            epoch=request.delivery.next_epoch(),
            deliver_to=route.deliver_to,
            delivered=[engine_pb2.Delivered(choice=choice, count=count) for choice, count in delivered.items()],
        )
        self._record(request, route, Change.REPLAY if route == request.route else Change.DETOKENIZER, reason)
        self._set_route(request, route)
        self._peers.send(route.engine, engine_pb2.Command(redirect=redirect))

    def send_done(self, request: Request) -> None:
        """Tell the engine on the present route to forget a request."""
        if request.route is not None:
            done = engine_pb2.Done(request_id=request.request_id, epoch=request.delivery.epoch)
            self._peers.done(request.route.engine, done, hurries=not request.delivery.is_computed)

    def clear_route(self, request: Request) -> None:
        """Take a request off its route."""
        request.route = None
        self.routed.discard(request.request_id)

    def forget(self, request: Request) -> None:
        """A request ended: send Done to its engine, and remove it here."""
        self.send_done(request)
        self.clear_route(request)
        self.unrouted.discard(request.request_id)
        self._routes.release(request.request_id, request.cached_prefixes())

    def _set_route(self, request: Request, route: Route) -> None:
        request.route = route
        self.unrouted.discard(request.request_id)
        self.routed.put(request.request_id, request, route)
        request.route_timeout.routed(time.monotonic())

    def _record(self, request: Request, route: Route, change: Change | None, reason: str) -> None:
        """Count and trace a route; ``change`` is None for a request's first route."""
        if change is not None:
            self.failovers[change] += 1
        changed = change.value if change is not None else ""
        request.trace.routed(route, request.delivery.epoch, changed, reason)


def next_submit(request: Request, deliver_to: str) -> engine_pb2.Submit:
    """The Submit that begins a request, or resumes it after the delivered output, under a new epoch."""
    submit = request.resolved.submit
    submit.request_id = request.request_id
    submit.epoch = request.delivery.next_epoch()
    submit.deliver_to = deliver_to
    submit.output_context = request.resolved.output_context
    if request.deadline is not None:
        submit.timeout_ms = max(1, round((request.deadline - time.monotonic()) * 1000))
    unfinished = request.delivery.unfinished()
    if request.resolved.answer_plan is not None:
        if len(unfinished) < request.resolved.num_choices:
            left = [each for each in submit.pooling.inputs if each.choice in unfinished]
            del submit.pooling.inputs[:]
            submit.pooling.inputs.extend(left)
    elif any(unfinished.values()) or len(unfinished) < request.resolved.num_choices:
        submit.resume.extend(
            sampling_pb2.ResumedChoice(choice=choice, token_ids=ids) for choice, ids in unfinished.items()
        )
    return submit
