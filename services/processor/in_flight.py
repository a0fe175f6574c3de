"""The requests this processor has on the ring: begun, followed, ended.

``RingRequest`` decides what a frame means; this file acts on it, with news to clients. Where a request is computed is
``Router``'s.
"""

from __future__ import annotations

import asyncio
import time

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import link_pb2

from services.processor.admission.backlog import Backlog
from services.processor.admission.rate_limiter import RateLimiter
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.client import CLIENT_EPOCH, ClientRequest, LiveRequest
from services.processor.metrics import ProcessorMetrics
from services.processor.peers import Peers
from services.processor.protobuf import TextEntry, ends_of, entries_of, refused_before_admission
from services.processor.request_log import count_delta, count_request, log_finished
from services.processor.routing import Router
from services.ring.dynamic_threshold import TenantMemoryQuota
from services.ring.errors import Code, Reason, Status, retry_after_ms
from services.ring.events import ChoiceEnd, FinishReason, Prefill
from services.ring.poison import MAX_CRASH_RESUBMITS
from services.ring.request import Verdict
from services.rpc.protobuf import read_logprobs, status_from_proto

MAX_LIVE_BYTES = 256 << 20
"""What requests that are under way take in memory together; one alone may take more."""
_TRY_ANOTHER_ENGINE = frozenset({Reason.CAPABILITY_MISSING, Reason.MODEL_GONE})
"""What one engine lacks another of the ring may have, while versions or models are being changed."""
RETRY_AFTER_MS = 500
"""Until a request that has to go on somewhere is given again to an engine that had no room."""


class InFlightRequests:
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
        meter: RateLimiter | None = None,
    ) -> None:
        """``patience`` in seconds: how long a request waits for a route, in one outage.

        ``max_crash_resubmits``: so many engines may die while they compute a request; then it is given to no other.
        """
        self.backlog = backlog
        self.meter = meter or RateLimiter(TenantPolicies(None))
        self._metrics = metrics
        self._live: dict[str, LiveRequest] = {}
        self._vocabularies = peers.vocabularies
        self._placement = Router(peers, self._fail, patience=patience, max_crash_resubmits=max_crash_resubmits)
        self.routes_changed = self._placement.routes_changed
        self.engine_lost = self._placement.engine_lost
        self.detokenizer_lost = self._placement.detokenizer_lost
        self._quota = TenantMemoryQuota(
            "prompt",
            "this processor",
            "them",
            max_live_bytes,
            lambda tenant: retry_after_ms(backlog.stay(tenant)),
        )

    @property
    def num_live(self) -> int:
        """Requests on the ring."""
        return len(self._live)

    @property
    def failovers(self) -> dict[str, int]:
        """How often a request went on elsewhere, by what was changed."""
        return {change.value: count for change, count in self._placement.failovers.items()}

    # From the client

    def start(self, live: LiveRequest) -> None:
        """An admitted request sets out. Raises ``Refused`` while too much is under way."""
        tenant = live.call.client.tenant
        self._quota.check(tenant, live.size)
        self.meter.queue(live.ring.request_id, tenant, live.ring.prompt_tokens)
        self._quota.take(tenant, live.size)
        self._vocabularies.enter(live.admission.generation)
        live.call.live = live
        self._live[live.ring.request_id] = live
        # Serialized messages of a kind, one behind the other, are one that has the fields of both.
        name = inference_pb2.Admitted(server_request_id=live.ring.request_id)
        admitted = live.admission.packed_admitted + name.SerializeToString()
        live.call.client.outbox.open(live.ring.request_id, CLIENT_EPOCH, admitted, len(admitted))
        live.call.client.wake.set()
        now = time.monotonic()
        self._metrics.admitted(now - live.call.arrived)
        if live.call.trace is not None:
            live.call.trace.admitted(live.ring.prompt_tokens, live.admission.model.model)
        live.outage.lost(now)
        self._placement.route(live, "no engine and detokenizer are joined")

    def end(self, call: ClientRequest, finish_reason: FinishReason, error: Status | None = None) -> None:
        """End a request here and now, from what was delivered; the ring is told to forget it. Idempotent."""
        if call.ended:
            return
        if call.live is None:
            if error is not None:
                self._metrics.request_refused(error.code.name, call.client.tenant)
            else:
                self._metrics.choice_ended(finish_reason.name.lower())
            self._close(call, refused_before_admission(finish_reason, error))
            return
        live = call.live
        if finish_reason is not FinishReason.ERROR and live.route is not None:
            self._charge_prompt(live)
        for choice, end in live.ring.abort(finish_reason, error).items():
            self._deliver_end(live, choice, end)
        self._finish(live)

    def _fail(self, live: LiveRequest, error: Status) -> None:
        self.end(live.call, FinishReason.ERROR, error)

    # PeerEvents

    def rejected(self, rejection: link_pb2.Rejection) -> None:
        """An engine refused a Submit or Redirect: another route for what may be tried again, else the end."""
        live = self._live.get(rejection.request_id)
        if live is None or rejection.epoch != live.ring.epoch:
            return
        status = status_from_proto(rejection.status)
        again = status.code in (Code.UNAVAILABLE, Code.NOT_FOUND) or status.reason in _TRY_ANOTHER_ENGINE
        if again:
            live.retry_at = time.monotonic() + (status.retry_after_ms or 0) / 1000
        if status.code is Code.RESOURCE_EXHAUSTED and live.ring.epoch > 1:
            # It was taken before; that there is no room where it has to go on is no reason to end it.
            again, live.retry_at = True, time.monotonic() + (status.retry_after_ms or RETRY_AFTER_MS) / 1000
        if again:
            self._placement.refused(live, status.message)
        else:
            self.end(live.call, FinishReason.ERROR, status)

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
        """See to what waits. Call a few times a second."""
        self.backlog.tick(now)
        self.meter.tick(now)
        self._placement.tick(now)

    # Frames

    def _heard(self, live: LiveRequest) -> None:
        """An engine computes it."""
        live.heard()
        if live.begun is None:
            live.begun = time.monotonic()
            self.backlog.leave(live.ring.request_id)
            self.meter.begun(live.ring.request_id)

    def _computes(self, live: LiveRequest, woken: set[asyncio.Event]) -> None:
        """An engine has begun: which model and numerics it has is told before what it computed."""
        if live.route is not None and not live.started:
            live.started = True
            numerics = self._placement.numerics(live.route.engine)
            started = inference_pb2.Started(
                model_digest=live.admission.model.model_digest,
                numerics=numerics,
                identical=not live.ring.completion_tokens or numerics == live.numerics,
                reason=live.reason if live.numerics else "",
            )
            live.numerics = numerics
            live.call.client.outbox.notice(live.ring.request_id, CLIENT_EPOCH, started)
            woken.add(live.call.client.wake)
        self._charge_prompt(live)
        self._heard(live)

    def _charge_prompt(self, live: LiveRequest) -> None:
        """The tenant has had the prompt, even if it waits for no token.

        Also of a request that is given up while an engine has it: word that it was begun may be on its way, and who
        gives up before that comes must not compute prompts for nothing.
        """
        if not live.charged:
            live.charged = True
            self.meter.computed(live.call.client.tenant, live.ring.prompt_tokens, time.monotonic())

    def _prefilled(self, prefill: engine_pb2.Prefill, woken: set[asyncio.Event]) -> None:
        live = self._live.get(prefill.request_id)
        if live is None or prefill.epoch != live.ring.epoch:
            return
        self._computes(live, woken)
        if prefill.computed_tokens == 0:
            return  # it begins; what was cached is known when something is computed
        live.ring.prefilled(prefill.epoch, prefill.cached_tokens)
        if live.admission.wants_prefill_progress:
            news = Prefill(prefill.prompt_tokens, prefill.computed_tokens, prefill.cached_tokens)
            live.call.client.outbox.prefill(prefill.request_id, CLIENT_EPOCH, news)
            woken.add(live.call.client.wake)

    def _prompt_scored(self, scored: engine_pb2.PromptLogprobs, woken: set[asyncio.Event]) -> None:
        live = self._live.get(scored.request_id)
        if live is None or scored.epoch != live.ring.epoch:
            return
        if scored.offset > live.prompt_scores:
            self._placement.replay(live)
            return
        fresh = scored.offset + len(scored.logprobs.logprobs) - live.prompt_scores
        if fresh <= 0:
            return
        self._computes(live, woken)
        scores = read_logprobs(scored.logprobs)
        scores = scores.part(len(scores) - fresh, len(scores))
        live.call.client.outbox.prompt_logprobs(scored.request_id, CLIENT_EPOCH, live.prompt_scores, scores)
        live.prompt_scores += fresh
        woken.add(live.call.client.wake)

    def _delta(self, entry: TextEntry, now: float, woken: set[asyncio.Event]) -> None:
        live = self._live.get(entry.request_id)
        if live is None:
            return
        if entry.ids and entry.epoch == live.ring.epoch and live.prompt_scores < live.admission.num_prompt_scores:
            self._placement.replay(live)  # they come before any token, so some were lost
            return
        if entry.epoch == live.ring.epoch:
            self._computes(live, woken)
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
            self.backlog.computed(count_delta(self._metrics, live, entry.choice, len(entry.ids), now))
            self.meter.computed(live.call.client.tenant, len(entry.ids), now)
        elif verdict is Verdict.REDIRECT:
            self._placement.replay(live)

    def _end(self, request_id: str, epoch: int, choice: int, end: ChoiceEnd, woken: set[asyncio.Event]) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        verdict = live.ring.end(epoch, choice, end)
        if verdict is Verdict.ACCEPT:
            if end.finish_reason is not FinishReason.ERROR:
                self._charge_prompt(live)
            self._deliver_end(live, choice, end)
            self._heard(live)
            woken.add(live.call.client.wake)
            if live.ring.finished:
                self._finish(live)
        elif verdict is Verdict.REDIRECT:
            self._placement.replay(live)

    def _deliver_end(self, live: LiveRequest, choice: int, end: ChoiceEnd) -> None:
        self._metrics.choice_ended(end.finish_reason.name.lower())
        live.call.client.outbox.end(live.ring.request_id, CLIENT_EPOCH, choice, end)

    def _finish(self, live: LiveRequest) -> None:
        """Every choice has ended: the usage, the end of the clock, and Done for the engine."""
        ring = live.ring
        usage = inference_pb2.Usage(
            prompt_tokens=ring.prompt_tokens,
            cached_tokens=ring.cached_tokens or 0,
            completion_tokens=ring.completion_tokens,
        )
        del self._live[ring.request_id]
        self._quota.give_back(live.call.client.tenant, live.size)
        self._placement.forget(live)
        if live.begun is not None:
            computed = ring.prompt_tokens + ring.completion_tokens
            self.backlog.ended(live.call.client.tenant, computed, time.monotonic() - live.begun)
        count_request(self._metrics, live, time.monotonic())
        self._close(live.call, usage)

    def _close(self, call: ClientRequest, closing: inference_pb2.Usage | inference_pb2.Refused) -> None:
        call.ended = True
        self.backlog.leave(call.ring_id)
        self.meter.leave(call.ring_id)
        if call.timer is not None:
            call.timer.cancel()
        call.client.outbox.close(call.ring_id, CLIENT_EPOCH, closing)
        call.client.wake.set()
        log_finished(call, closing)
        if call.trace is not None:
            call.trace.closed(call, closing)
        call.live = None  # they refer to each other: else both would stay until Python looks for cycles
