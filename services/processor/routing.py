"""Where each request is computed: it gets a route, is moved when a peer is lost or silent, waits while there is none.

Whoever owns the requests ends those that cannot go on, through ``end``.
"""

from __future__ import annotations

import enum
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import structlog
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import sampling_pb2

from services.processor.client import LiveRequest
from services.processor.peers import Peers
from services.processor.served_models import no_route
from services.ring.deadline_queue import DeadlineQueue
from services.ring.errors import Code, Reason, Status, invalid_field
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from services.ring.poison import Blame
from services.ring.routes import Route, RouteIndex

log = structlog.get_logger(__name__)

MAX_REDIRECTS = 5
"""Replays asked for because frames did not fit, before a request fails: a peer that keeps breaking the rules."""
_BLAME_INTERVAL = 0.25
"""Seconds between looks at whether engines that died with a request have come back."""


class Change(enum.Enum):
    """What was changed for a request that had been on its way."""

    ENGINE = "engine"
    """It is computed elsewhere, or anew."""
    DETOKENIZER = "detokenizer"
    """It is computed where it was, and decoded elsewhere."""
    REPLAY = "replay"
    """Nothing: its output was asked for again, because some was lost."""


class Router:
    """Of the requests of one processor."""

    def __init__(
        self,
        peers: Peers,
        end: Callable[[LiveRequest, Status], None],
        *,
        patience: float,
        max_crash_resubmits: int,
    ) -> None:
        """As in ``InFlightRequests``; ``end`` ends a request with an error."""
        self._peers = peers
        self._end = end
        self._patience = patience
        self._max_crash_resubmits = max_crash_resubmits
        self._placed: RouteIndex[LiveRequest] = RouteIndex()
        self._stranded: DeadlineQueue[LiveRequest] = DeadlineQueue()
        """Without a route: due when it is worth to look for one though nothing has changed, or patience is over."""
        self._revision = -1
        """Of the routes when those that are stranded, or at suspects, were looked at last."""
        self._look_at = math.inf
        """When to look at those between parted pairs though nothing has changed."""
        self.failovers: Counter[Change] = Counter(dict.fromkeys(Change, 0))
        """How often each was done."""

    # News of peers

    def routes_changed(self) -> None:
        """Stranded requests may go on."""
        for live in self._stranded.items():
            self.route(live, live.reason)

    def engine_lost(self, engine: PeerId, *, crashed: bool) -> None:
        """Its requests need another engine."""
        now = time.monotonic()
        for live in self._placed.at_engine(engine):
            self._unplace(live)
            live.outage.lost(now)
            if crashed:
                live.crashes.ended(engine, now, computing=live.computing)
            self.route(live, f"engine {engine.name} was lost")

    def detokenizer_lost(self, detokenizer: PeerId) -> None:
        """Its requests need another detokenizer."""
        for live in self._placed.at_detokenizer(detokenizer):
            live.outage.lost(time.monotonic())
            self.route(live, f"detokenizer {detokenizer.name} was lost")

    def tick(self, now: float) -> None:
        """Lose patience with routes that do not come, and leave who gives no sign of life.

        Who found no route is looked at again when routes have changed: it would find none before.
        """
        changed, self._revision = self._revision != self._peers.revision, self._peers.revision
        due = self._stranded.due(now)
        for live in self._stranded.items() if changed else due:
            if live.outage.waited(now) > self._patience:
                generation = live.admission.generation
                status = no_route(self._peers.vocabularies.preferred(), generation, self._patience).status
                self._end(live, replace(status, message=f"{status.message}: {live.reason}"))
            elif now >= live.retry_at:
                self.route(live, live.reason)
            else:
                self._strand(live, live.reason, live.retry_at)
        if changed or now > self._look_at:
            self._leave(now)

    # Of one request

    def numerics(self, engine: PeerId) -> str:
        """Those of an engine that is linked; empty where it is not any more."""
        return self._peers.numerics(engine) if self._peers.has_engine(engine) else ""

    def forget(self, live: LiveRequest) -> None:
        """It has ended: no route is wanted for it, and the engine that has it is told."""
        self._stranded.discard(live.ring.request_id)
        self._forget_at(live)
        self._unplace(live)
        self._peers.release(live.ring.request_id, live.computed())
        self._peers.vocabularies.leave(live.admission.generation)

    def refused(self, live: LiveRequest, reason: str) -> None:
        """Its engine did not take it: it waits for another route."""
        self._forget_at(live)  # it may still have it, under an earlier epoch
        self._unplace(live)
        live.outage.refused(time.monotonic())
        self._strand(live, reason, live.retry_at)

    def _leave(self, now: float) -> None:
        """Move what stands still, as far as there is another route. It may yet go on: a false alarm is harmless.

        It is at peers that give no sign of life, or between parted pairs.
        """
        suspects = self._peers.suspects
        for peer in suspects:
            for live in self._placed.at_engine(peer):
                self._resubmit(live, f"engine {peer.name} gave no sign of life")
            for live in self._placed.at_detokenizer(peer):
                if live.route is not None and live.route.engine not in suspects:
                    self._leave_detokenizer(live, live.route)
        self._look_at = math.inf
        for route, since in self._peers.parted.items():
            if route.engine in suspects:
                continue
            for live in self._placed.on(route):
                if not self._leave_detokenizer(live, route) and now - since > BEAT_LIMIT:
                    self._resubmit(live, f"engine {route.engine.name} is heard by no detokenizer")
            if now - since <= BEAT_LIMIT and self._placed.on(route):  # they may just be joining again
                self._look_at = min(self._look_at, since + BEAT_LIMIT)

    def _leave_detokenizer(self, live: LiveRequest, route: Route) -> bool:
        """Go on at another detokenizer, if there is one, computed where it was."""
        if (other := self._choose(live, route.engine)) is None:
            return False
        live.outage.lost(time.monotonic())
        self._redirect(live, other, f"detokenizer {route.detokenizer.name} does not hear, or is not heard")
        return True

    def _resubmit(self, live: LiveRequest, reason: str) -> bool:
        """Go on at another engine, if there is one, though the present one may be alive."""
        if (route := self._choose(live)) is None:
            return False
        self._forget_at(live)  # read when it comes back; what it then says is of an earlier epoch
        live.outage.lost(time.monotonic())
        self._submit(live, route, reason)
        return True

    def route(self, live: LiveRequest, reason: str) -> None:
        """Give the request a route: another detokenizer if its engine is there, else another engine."""
        if live.route is not None and self._peers.has_engine(live.route.engine):
            self._route_from(live, live.route.engine, reason)
        else:
            self._route_anew(live, reason)

    def _route_from(self, live: LiveRequest, engine: PeerId, reason: str) -> None:
        if (route := self._choose(live, engine)) is not None:
            self._redirect(live, route, reason)
            return
        now = time.monotonic()
        stays_until = now + BEAT_LIMIT - live.outage.waited(now)  # its engine may just be joining another
        if now <= stays_until:
            self._strand(live, reason, stays_until)
        elif not self._resubmit(live, f"engine {engine.name} has no detokenizer"):
            self._strand(live, reason)

    def _route_anew(self, live: LiveRequest, reason: str) -> None:
        self._unplace(live)
        blame = live.crashes.blame(time.monotonic(), self._max_crash_resubmits, self._peers.has_engine)
        if blame is Blame.POISON:
            message = f"{live.crashes.count} engines died while they had this request"
            self._end(live, Status(Code.INTERNAL, message, given_reason=Reason.POISON))
        elif blame is Blame.UNSURE:
            self._strand(live, reason, time.monotonic() + _BLAME_INTERVAL)
        elif (route := self._choose(live)) is not None:
            self._submit(live, route, reason)
        else:
            self._strand(live, reason)

    def _choose(self, live: LiveRequest, engine: PeerId | None = None) -> Route | None:
        request_id, choices = live.ring.request_id, len(live.ring.unfinished())
        admission = live.admission
        return self._peers.choose(request_id, admission.generation, admission.prefixes, choices=choices, engine=engine)

    def _strand(self, live: LiveRequest, reason: str, due: float = math.inf) -> None:
        """It waits for a route; ``due``: when to look for one though nothing has changed."""
        live.reason = reason
        now = time.monotonic()
        patient_until = now + self._patience - live.outage.waited(now)
        self._stranded.put(live.ring.request_id, live, min(due, patient_until))

    def _settle(self, live: LiveRequest, route: Route) -> None:
        live.route = route
        self._placed.put(live.ring.request_id, live, route)
        live.outage.routed(time.monotonic())
        self._stranded.discard(live.ring.request_id)

    def _unplace(self, live: LiveRequest) -> None:
        live.route = None
        self._placed.discard(live.ring.request_id)

    def _submit(self, live: LiveRequest, route: Route, reason: str) -> None:
        submit = submit_of(live, route.detokenizer.name)
        if (size := submit.ByteSize()) > (most := self._peers.max_command_bytes(route.engine)):
            # It would end the link, and with it every other request that is on its way.
            problem = f"with what was delivered, {size} bytes on the way to an engine: expected at most {most}"
            self._end(live, invalid_field("prompt", problem, reason=Reason.TOO_LARGE).status)
            return
        moved = submit.epoch > 1
        self._note(live, route, Change.ENGINE if moved else None, reason)
        live.reason = reason if moved else ""
        live.computing = live.started = False
        self._settle(live, route)
        self._peers.send(route.engine, (engine_pb2.Command(submit=submit),))

    def _redirect(self, live: LiveRequest, route: Route, reason: str) -> None:
        redirect = redirect_of(live, route.detokenizer.name)
        self._note(live, route, Change.REPLAY if route == live.route else Change.DETOKENIZER, reason)
        self._settle(live, route)
        self._peers.send(route.engine, (redirect,))

    def _note(self, live: LiveRequest, route: Route, change: Change | None, reason: str) -> None:
        """It goes this way now; without a change, for the first time."""
        if change is not None:
            self.failovers[change] += 1
        if live.call.trace is not None:
            changed = change.value if change is not None else ""
            live.call.trace.routed(route, live.ring.epoch, changed, reason)

    def replay(self, live: LiveRequest) -> None:
        """A frame did not fit: ask for the log again, from what is there."""
        if live.ring.request_id in self._stranded:
            return  # the route that it waits for brings a replay
        live.ring.redirects += 1
        log.warning("frames did not fit", request_id=live.ring.request_id, redirects=live.ring.redirects)
        if live.ring.redirects > MAX_REDIRECTS:
            message = f"its frames did not fit {live.ring.redirects} times"
            self._end(live, Status(Code.INTERNAL, message))
        elif live.route is not None:
            self._redirect(live, live.route, "frames did not fit")

    def _forget_at(self, live: LiveRequest) -> None:
        """Tell the engine that has a request to forget it."""
        if live.route is not None:
            self._peers.send(live.route.engine, (done_of(live),))


def submit_of(live: LiveRequest, deliver_to: str) -> engine_pb2.Submit:
    """Begin it, or go on with it from what was delivered, under a new epoch."""
    submit = live.admission.submit
    submit.request_id = live.ring.request_id
    submit.epoch = live.ring.next_epoch()
    submit.deliver_to = deliver_to
    submit.output_context = live.admission.output_context
    if live.call.deadline is not None:
        submit.timeout_ms = max(1, round((live.call.deadline - time.monotonic()) * 1000))
    unfinished = live.ring.unfinished()
    if any(unfinished.values()) or len(unfinished) < live.admission.num_choices:
        submit.resume.extend(
            sampling_pb2.ResumedChoice(choice=choice, token_ids=ids) for choice, ids in unfinished.items()
        )
    return submit


def redirect_of(live: LiveRequest, deliver_to: str) -> engine_pb2.Command:
    """Have its log sent again, under a new epoch."""
    delivered = [engine_pb2.Delivered(choice=choice, count=count) for choice, count in live.ring.delivered().items()]
    redirect = engine_pb2.Redirect(
        request_id=live.ring.request_id, epoch=live.ring.next_epoch(), deliver_to=deliver_to, delivered=delivered
    )
    return engine_pb2.Command(redirect=redirect)


def done_of(live: LiveRequest) -> engine_pb2.Command:
    """Have it forgotten."""
    return engine_pb2.Command(done=engine_pb2.Done(request_id=live.ring.request_id, epoch=live.ring.epoch))
