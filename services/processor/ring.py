"""The requests this processor has on the ring: submitted, followed, moved when a peer is lost, ended.

``RingRequest`` decides what a frame means; this file acts on it: commands to engines, news to clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Set

import structlog
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import link_pb2

from services.processor.backlog import Backlog
from services.processor.client import CLIENT_EPOCH, ClientRequest, LiveRequest
from services.processor.commands import done_of, redirect_of, submit_of
from services.processor.peers import Peers
from services.processor.records import count_delta, log_finished
from services.processor.responses import end_without_choice
from services.processor.text_frames import TextEntry, ends_of, entries_of
from services.ring.crashes import MAX_CRASH_RESUBMITS, Blame
from services.ring.events import Cause, ChoiceEnd, Code, Prefill, Status
from services.ring.identity import PeerId
from services.ring.liveness import BEAT_LIMIT
from services.ring.quota import Quota
from services.ring.request import Verdict
from services.ring.routes import Route
from services.runtime.metrics import ProcessorMetrics
from services.runtime.wire import packed_from_proto, status_from_proto

log = structlog.get_logger(__name__)

MAX_LIVE_BYTES = 512 << 20
"""What requests that are under way would be submitted with is held up to this size together, of one always."""
RETRY_AFTER_MS = 500
"""Until a request that has to go on somewhere is given again to an engine that had no room."""
MAX_REDIRECTS = 5
"""Replays asked for because frames did not fit, before a request fails: a peer that keeps breaking the rules."""


class Ring:
    """Implements ``PeerEvents``."""

    def __init__(
        self,
        peers: Peers,
        metrics: ProcessorMetrics,
        backlog: Backlog,
        *,
        patience: float,
        max_crash_resubmits: int = MAX_CRASH_RESUBMITS,
        max_live_bytes: int = MAX_LIVE_BYTES,
    ) -> None:
        """``patience`` in seconds: how long a request waits for a route, in one outage.

        ``max_crash_resubmits``: so many engines may die while they compute a request; then it is given to no other.
        """
        self.backlog = backlog
        self._peers = peers
        self._metrics = metrics
        self._patience = patience
        self._max_crash_resubmits = max_crash_resubmits
        self._live: dict[str, LiveRequest] = {}
        self._stranded: dict[str, LiveRequest] = {}
        self._quota = Quota("prompt", "this processor", "them", max_live_bytes)

    @property
    def idle(self) -> bool:
        """Whether no request is live."""
        return not self._live

    @property
    def num_live(self) -> int:
        """Requests on the ring."""
        return len(self._live)

    # From the client

    def start(self, live: LiveRequest) -> None:
        """An admitted request sets out. Raises ``Refused`` while too much is under way."""
        tenant = live.call.client.tenant
        self._quota.check(tenant, live.size)
        self._quota.take(tenant, live.size)
        live.call.live = live
        self._live[live.ring.request_id] = live
        news = live.call.client.news(live.ring.request_id)
        news.opening = live.admission.admitted
        news.opening_bytes = live.admission.admitted.ByteSize()
        live.call.client.wake.set()
        live.outage.lost(time.monotonic())
        self._route(live, "no engine and detokenizer are joined")

    def end(self, call: ClientRequest, cause: Cause, error: Status | None = None) -> None:
        """End a request here and now, from what was delivered; the ring is told to forget it. Idempotent."""
        if call.ended:
            return
        if call.live is None:
            if error is not None:
                self._metrics.request_refused(error.code.name)
            else:
                self._metrics.choice_ended(cause.name.lower())
            self._close(call, end_without_choice(cause, error))
            return
        live = call.live
        for choice, end in live.ring.abort(cause, error).items():
            self._deliver_end(live, choice, end)
        self._finish(live)

    # PeerEvents

    def routes_changed(self) -> None:
        """Stranded requests may go on."""
        for live in list(self._stranded.values()):
            self._route(live, live.reason)

    def engine_lost(self, engine: PeerId, *, crashed: bool) -> None:
        """Its requests need another engine."""
        now = time.monotonic()
        for live in [live for live in self._live.values() if live.route is not None and live.route.engine == engine]:
            live.route = None
            live.outage.lost(now)
            if crashed:
                live.crashes.ended(engine, now, computing=live.computing)
            self._route(live, f"engine {engine.name} was lost")

    def detokenizer_lost(self, detokenizer: PeerId) -> None:
        """Its requests need another detokenizer."""
        for live in list(self._live.values()):
            if live.route is not None and live.route.detokenizer == detokenizer:
                live.outage.lost(time.monotonic())
                self._route(live, f"detokenizer {detokenizer.name} was lost")

    def rejected(self, rejection: link_pb2.Rejection) -> None:
        """An engine refused a Submit or Redirect: another route for what may be tried again, else the end."""
        live = self._live.get(rejection.request_id)
        if live is None or rejection.epoch != live.ring.epoch:
            return
        status = status_from_proto(rejection.status)
        again = status.code in (Code.UNAVAILABLE, Code.NOT_FOUND)
        if status.code is Code.RESOURCE_EXHAUSTED and live.ring.epoch > 1:
            # It was taken before; that there is no room where it has to go on is no reason to end it.
            again, live.retry_at = True, time.monotonic() + (status.retry_after_ms or RETRY_AFTER_MS) / 1000
        if again:
            self._forget_at(live)  # it may still have it, under an earlier epoch
            live.route = None
            live.outage.refused(time.monotonic())
            self._strand(live, status.message)
        else:
            self.end(live.call, Cause.ERROR, status)

    def text(self, outputs: detokenizer_pb2.TextOutputs) -> None:
        """A detokenizer's frame: deltas, then ends."""
        now = time.monotonic()
        woken: set[asyncio.Event] = set()
        for prefill in outputs.prefills:
            self._prefilled(prefill, woken)
        for scored in outputs.prompt_logprobs:
            self._prompt_scored(scored, woken)
        for entry in entries_of(outputs):
            self._delta(entry, now, woken)
        for request_id, epoch, choice, end in ends_of(outputs):
            self._end(request_id, epoch, choice, end, woken)
        for event in woken:
            event.set()

    def tick(self, now: float) -> None:
        """Lose patience with routes that do not come. Call a few times a second."""
        self.backlog.tick(now)
        for live in list(self._stranded.values()):
            if live.outage.waited(now) > self._patience:
                message = f"no engine for this request within {self._patience:g} s: {live.reason}"
                self.end(live.call, Cause.ERROR, Status(Code.UNAVAILABLE, message, retry_after_ms=1000))
            elif now >= live.retry_at:
                self._route(live, live.reason)
        if self._peers.suspects or self._peers.parted:
            self._leave(self._peers.suspects, self._peers.parted, now)

    # Routing

    def _leave(self, suspects: Set[PeerId], parted: Mapping[Route, float], now: float) -> None:
        """Move what stands still, as far as there is another route. It may yet go on: a false alarm is harmless.

        ``suspects`` give no sign of life; between ``parted`` pairs nothing gets through, since then.
        """
        for live in list(self._live.values()):
            if live.route is None:
                continue
            engine, detokenizer = live.route.engine, live.route.detokenizer
            if engine in suspects:
                self._resubmit(live, f"engine {engine.name} gave no sign of life")
            elif detokenizer in suspects or live.route in parted:
                if (route := self._choose(live, engine)) is not None:
                    live.outage.lost(time.monotonic())
                    self._redirect(live, route)
                elif now - parted.get(live.route, now) > BEAT_LIMIT:  # else they may just be joining again
                    self._resubmit(live, f"engine {engine.name} is heard by no detokenizer")

    def _resubmit(self, live: LiveRequest, reason: str) -> None:
        """Go on at another engine, if there is one, though the present one may be alive."""
        if (route := self._choose(live)) is not None:
            self._forget_at(live)  # read when it comes back; what it then says is of an earlier epoch
            live.outage.lost(time.monotonic())
            self._submit(live, route, reason)

    def _route(self, live: LiveRequest, reason: str) -> None:
        """Give the request a route: another detokenizer if its engine is there, else another engine."""
        engine = live.route.engine if live.route is not None else None
        if engine is not None and self._peers.has_engine(engine):
            route = self._choose(live, engine)
            if route is not None:
                self._redirect(live, route)
                return
        else:
            live.route = None
            blame = live.crashes.blame(time.monotonic(), self._max_crash_resubmits, self._peers.has_engine)
            if blame is Blame.POISON:
                message = f"{live.crashes.count} engines died while they had this request"
                self.end(live.call, Cause.ERROR, Status(Code.INTERNAL, message))
                return
            route = self._choose(live) if blame is Blame.NONE else None
            if route is not None:
                self._submit(live, route, reason)
                return
        self._strand(live, reason)

    def _choose(self, live: LiveRequest, engine: PeerId | None = None) -> Route | None:
        request_id, choices = live.ring.request_id, len(live.ring.unfinished())
        return self._peers.choose(request_id, live.admission.prefixes, choices=choices, engine=engine)

    def _strand(self, live: LiveRequest, reason: str) -> None:
        live.reason = reason
        self._stranded[live.ring.request_id] = live

    def _settle(self, live: LiveRequest, route: Route) -> None:
        live.route = route
        live.outage.routed(time.monotonic())
        self._stranded.pop(live.ring.request_id, None)

    def _submit(self, live: LiveRequest, route: Route, reason: str) -> None:
        submit = submit_of(live, route.detokenizer.name)
        if (size := submit.ByteSize()) > (most := self._peers.max_command_bytes(route.engine)):
            # It would end the link, and with it every other request that is on its way.
            problem = f"prompt: with what was delivered, {size} bytes on the way to an engine: expected at most {most}"
            self.end(live.call, Cause.ERROR, Status(Code.INVALID_ARGUMENT, problem))
            return
        fingerprint = self._peers.fingerprint(route.engine)
        if live.fingerprint is not None and live.ring.completion_tokens:
            self._notify_continued(live, reason, identical=fingerprint == live.fingerprint)
        live.fingerprint = fingerprint
        live.computing = False
        self._settle(live, route)
        self._peers.send(route.engine, (engine_pb2.Command(submit=submit),))

    def _redirect(self, live: LiveRequest, route: Route) -> None:
        redirect = redirect_of(live, route.detokenizer.name)
        self._settle(live, route)
        self._peers.send(route.engine, (redirect,))

    def _replay(self, live: LiveRequest) -> None:
        """A frame did not fit: ask for the log again, from what is there."""
        if live.ring.request_id in self._stranded:
            return  # the route that it waits for brings a replay
        live.ring.redirects += 1
        log.warning("frames did not fit", request_id=live.ring.request_id, redirects=live.ring.redirects)
        if live.ring.redirects > MAX_REDIRECTS:
            message = f"its frames did not fit {live.ring.redirects} times"
            self.end(live.call, Cause.ERROR, Status(Code.INTERNAL, message))
        elif live.route is not None:
            self._redirect(live, live.route)

    def _notify_continued(self, live: LiveRequest, reason: str, *, identical: bool) -> None:
        news = live.call.client.news(live.ring.request_id)
        news.notices.append(inference_pb2.Continued(reason=reason, identical=identical))
        live.call.client.wake.set()

    # Frames

    def _heard(self, live: LiveRequest) -> None:
        """An engine computes it."""
        live.heard()
        if live.begun is None:
            live.begun = time.monotonic()
            self.backlog.leave(live.ring.request_id)

    def _prefilled(self, prefill: engine_pb2.Prefill, woken: set[asyncio.Event]) -> None:
        live = self._live.get(prefill.request_id)
        if live is None or prefill.epoch != live.ring.epoch:
            return
        self._heard(live)
        if prefill.computed_tokens == 0:
            return  # it begins; what was cached is known when something is computed
        live.ring.prefilled(prefill.epoch, prefill.cached_tokens)
        if live.admission.wants_prefill_progress:
            news = live.call.client.news(prefill.request_id)
            news.prefill = Prefill(prefill.prompt_tokens, prefill.computed_tokens, prefill.cached_tokens)
            woken.add(live.call.client.wake)

    def _prompt_scored(self, scored: engine_pb2.PromptLogprobs, woken: set[asyncio.Event]) -> None:
        live = self._live.get(scored.request_id)
        if live is None or scored.epoch != live.ring.epoch:
            return
        if scored.offset > live.prompt_scores:
            self._replay(live)
            return
        fresh = scored.offset + len(scored.logprobs.logprobs) - live.prompt_scores
        if fresh <= 0:
            return
        self._heard(live)
        news = live.call.client.news(scored.request_id)
        scores = packed_from_proto(scored.logprobs)
        news.add_prompt_logprobs(live.prompt_scores, scores.part(len(scores) - fresh, len(scores)))
        live.prompt_scores += fresh
        woken.add(live.call.client.wake)

    def _delta(self, entry: TextEntry, now: float, woken: set[asyncio.Event]) -> None:
        live = self._live.get(entry.request_id)
        if live is None:
            return
        if entry.ids and entry.epoch == live.ring.epoch and live.prompt_scores < live.admission.num_prompt_scores:
            self._replay(live)  # they come before any token, so some were lost
            return
        verdict = live.ring.delta(entry.epoch, entry.choice, entry.first_position, entry.ids)
        if verdict is Verdict.ACCEPT:
            client = live.call.client
            client.outbox.delta(
                entry.request_id,
                CLIENT_EPOCH,
                entry.choice,
                entry.first_position,
                entry.ids,
                entry.text,
                entry.logprobs,
            )
            woken.add(client.wake)
            self._heard(live)
            self.backlog.computed(count_delta(self._metrics, live, entry.choice, len(entry.ids), now))
        elif verdict is Verdict.REDIRECT:
            self._replay(live)

    def _end(self, request_id: str, epoch: int, choice: int, end: ChoiceEnd, woken: set[asyncio.Event]) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        verdict = live.ring.end(epoch, choice, end)
        if verdict is Verdict.ACCEPT:
            self._deliver_end(live, choice, end)
            self._heard(live)
            woken.add(live.call.client.wake)
            if live.ring.finished:
                self._finish(live)
        elif verdict is Verdict.REDIRECT:
            self._replay(live)

    def _deliver_end(self, live: LiveRequest, choice: int, end: ChoiceEnd) -> None:
        self._metrics.choice_ended(end.cause.name.lower())
        live.call.client.outbox.end(live.ring.request_id, CLIENT_EPOCH, choice, end)

    def _finish(self, live: LiveRequest) -> None:
        """Every choice has its terminal: the usage, the end of the clock, and Done for the engine."""
        ring = live.ring
        usage = inference_pb2.Usage(
            prompt_tokens=ring.prompt_tokens,
            cached_tokens=ring.cached_tokens or 0,
            completion_tokens=ring.completion_tokens,
        )
        del self._live[ring.request_id]
        self._quota.give_back(live.call.client.tenant, live.size)
        self._stranded.pop(ring.request_id, None)
        self._forget_at(live)
        self._peers.release(ring.request_id, live.computed())
        if live.begun is not None:
            self.backlog.ended(ring.prompt_tokens + ring.completion_tokens, time.monotonic() - live.begun)
        self._metrics.request_ended(ring.prompt_tokens, ring.completion_tokens, time.monotonic() - live.call.arrived)
        self._close(live.call, usage)

    def _forget_at(self, live: LiveRequest) -> None:
        """Tell the engine that has a request to forget it."""
        if live.route is not None:
            self._peers.send(live.route.engine, (done_of(live),))

    def _close(self, call: ClientRequest, closing: inference_pb2.Usage | inference_pb2.Terminal) -> None:
        call.ended = True
        self.backlog.leave(call.ring_id)
        if call.timer is not None:
            call.timer.cancel()
        news = call.client.news(call.ring_id)
        news.closing = closing
        call.client.wake.set()
        log_finished(call, closing)
        call.live = None  # they refer to each other: else both would stay until Python looks for cycles
