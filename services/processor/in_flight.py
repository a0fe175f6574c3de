"""The requests in flight: starts them, delivers their output frame by frame, and ends them.

``Delivery`` judges a frame; ``InFlightRequests`` acts on the verdict and responds to clients. ``Failover`` decides
where a request is computed, and where it goes when a peer is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import link_pb2

from services.common.rpc.shared_messages import read_logprobs, status_from_proto
from services.processor.admission.backlog import Backlog
from services.processor.admission.rate_limiter import RateLimiter
from services.processor.failover import Failed, Failover
from services.processor.inference_messages import TextEntry, ends_of, entries_of, refused_before_admission
from services.processor.metrics import ProcessorMetrics
from services.processor.peers import Peers
from services.processor.request import Request, ResolvedRequest
from services.processor.request_log import count_delta, count_request, log_finished, log_refused
from services.processor.served_models import ServedModels
from services.ring.delivery import Verdict
from services.ring.dynamic_threshold import TenantMemoryQuota
from services.ring.errors import Code, Status, retry_after_ms
from services.ring.events import ChoiceEnd, FinishReason, Prefill
from services.ring.identity import PeerId

CLIENT_EPOCH = 0
"""The epoch of everything in a client's outbox: clients see no epochs, and accepted output is never replaced."""
MAX_LIVE_BYTES = 256 << 20
"""Memory that the requests in flight may take together; one alone may take more."""


class InFlightRequests:
    """All requests between admission and end. Implements ``PeerListener``."""

    def __init__(
        self,
        models: ServedModels,
        peers: Peers,
        failover: Failover,
        backlog: Backlog,
        rate_limiter: RateLimiter,
        metrics: ProcessorMetrics,
        *,
        max_live_bytes: int = MAX_LIVE_BYTES,
    ) -> None:
        self._models = models
        self._peers = peers
        self._failover = failover
        self._backlog = backlog
        self._rate_limiter = rate_limiter
        self._metrics = metrics
        self._requests: dict[str, Request] = {}
        self._quota = TenantMemoryQuota(
            "prompt",
            "this processor",
            "prompts and outputs",
            max_live_bytes,
            lambda tenant: retry_after_ms(backlog.stay(tenant)),
        )

    @property
    def num_live(self) -> int:
        return len(self._requests)

    # From the client

    def start(self, request: Request, resolved: ResolvedRequest) -> None:
        """Put a tokenized request in flight. Raises ``Refused`` if it exceeds the quota of memory or queued tokens."""
        self._quota.check(request.tenant, resolved.held_bytes)
        self._rate_limiter.queue(request.request_id, request.tenant, resolved.prompt_tokens)
        self._quota.take(request.tenant, resolved.held_bytes)
        self._models.enter(resolved.generation)
        request.admit(resolved)
        self._requests[request.request_id] = request
        # Serialized messages of one type, concatenated, are one message with the fields of both.
        server_request_id = inference_pb2.Admitted(server_request_id=request.request_id)
        admitted = resolved.packed_admitted + server_request_id.SerializeToString()
        request.stream.outbox.open(request.request_id, CLIENT_EPOCH, admitted, len(admitted))
        request.stream.wake.set()
        now = time.monotonic()
        self._metrics.admitted(now - request.arrived_at)
        if request.trace is not None:
            request.trace.admitted(resolved.prompt_tokens, resolved.model.model)
        request.route_timeout.lost(now)
        self._end_if(request, self._failover.route(request, "no engine and detokenizer are joined"))

    def end(self, request: Request, finish_reason: FinishReason, error: Status | None = None) -> None:
        """End a request at once, with what was delivered; its engine gets ``Done``. Idempotent."""
        if request.finished:
            return
        if not request.admitted:
            self._end_unadmitted(request, finish_reason, error)
            return
        if finish_reason is not FinishReason.ERROR and request.route is not None:
            self._charge_prompt(request)
        for choice, end in request.delivery.abort(finish_reason, error).items():
            self._deliver_end(request, choice, end)
        self._finish(request)

    # PeerListener

    def routes_changed(self) -> None:
        self._end_failed(self._failover.routes_changed())

    def engine_lost(self, engine: PeerId, *, crashed: bool) -> None:
        self._end_failed(self._failover.engine_lost(engine, crashed=crashed))

    def detokenizer_lost(self, detokenizer: PeerId) -> None:
        self._end_failed(self._failover.detokenizer_lost(detokenizer))

    def rejected(self, rejection: link_pb2.Rejection) -> None:
        """An engine refused a Submit or Redirect: try another route if that may help, else end the request."""
        request = self._requests.get(rejection.request_id)
        if request is None or rejection.epoch != request.delivery.epoch:
            return
        self._end_if(request, self._failover.rejected(request, status_from_proto(rejection.status)))

    def text(self, outputs: detokenizer_pb2.TextOutputs) -> None:
        """A detokenizer's frame: prompt progress and scores, deltas, then ends. Writers are woken once."""
        now = time.monotonic()
        woken: set[asyncio.Event] = set()
        for prefill in outputs.prefills:
            self._prefilled(prefill, woken)
        for scored in outputs.prompt_logprobs:
            self._prompt_scored(scored, woken)
        for entry in entries_of(outputs):
            self._delta(entry, now, woken)
        for request_id, epoch, choice, end in ends_of(outputs):
            self._choice_ended(request_id, epoch, choice, end, woken)
        for event in woken:
            event.set()

    def tick(self, now: float) -> None:
        """Measure throughput, forget idle tenants, and route requests without a route. Call a few times a second."""
        self._backlog.tick(now)
        self._rate_limiter.tick(now)
        self._end_failed(self._failover.tick(now))

    # Frames

    def _heard(self, request: Request) -> None:
        request.heard()
        if request.computing_since is None:
            request.computing_since = time.monotonic()
            self._backlog.leave(request.request_id)
            self._rate_limiter.begun(request.request_id)

    def _computes(self, request: Request, woken: set[asyncio.Event]) -> None:
        """An engine computes the request: record that, and send the client model and numerics before any output."""
        if request.route is not None and not request.started_sent:
            request.started_sent = True
            numerics = self._peers.numerics(request.route.engine)
            started = inference_pb2.Started(
                model_digest=request.resolved.model.model_digest,
                numerics=numerics,
                identical=not request.delivery.completion_tokens or numerics == request.numerics,
                reason=request.route_lost_reason if request.numerics else "",
            )
            request.numerics = numerics
            request.stream.outbox.notice(request.request_id, CLIENT_EPOCH, started)
            woken.add(request.stream.wake)
        self._charge_prompt(request)
        self._heard(request)

    def _charge_prompt(self, request: Request) -> None:
        """Charge the prompt to the tenant's rate limit, once.

        A request that is cancelled while an engine has it is charged too, even before any progress is reported:
        otherwise a client could have prompts computed for free.
        """
        if not request.prompt_charged:
            request.prompt_charged = True
            self._rate_limiter.computed(request.tenant, request.resolved.prompt_tokens, time.monotonic())

    def _prefilled(self, prefill: engine_pb2.Prefill, woken: set[asyncio.Event]) -> None:
        request = self._requests.get(prefill.request_id)
        if request is None or prefill.epoch != request.delivery.epoch:
            return
        self._computes(request, woken)
        if prefill.computed_tokens == 0:
            return  # it begins; how much was cached is known once something is computed
        request.delivery.prefilled(prefill.epoch, prefill.cached_tokens)
        if request.resolved.wants_prefill_progress:
            progress = Prefill(prefill.prompt_tokens, prefill.computed_tokens, prefill.cached_tokens)
            request.stream.outbox.prefill(prefill.request_id, CLIENT_EPOCH, progress)
            woken.add(request.stream.wake)

    def _prompt_scored(self, scored: engine_pb2.PromptLogprobs, woken: set[asyncio.Event]) -> None:
        request = self._requests.get(scored.request_id)
        if request is None or scored.epoch != request.delivery.epoch:
            return
        delivered = request.prompt_scores_delivered
        if scored.offset > delivered:
            self._replay(request)
            return
        fresh = scored.offset + len(scored.logprobs.logprobs) - delivered
        if fresh <= 0:
            return
        self._computes(request, woken)
        scores = read_logprobs(scored.logprobs)
        scores = scores.part(len(scores) - fresh, len(scores))
        request.stream.outbox.prompt_logprobs(scored.request_id, CLIENT_EPOCH, delivered, scores)
        request.prompt_scores_delivered += fresh
        woken.add(request.stream.wake)

    def _delta(self, entry: TextEntry, now: float, woken: set[asyncio.Event]) -> None:
        request = self._requests.get(entry.request_id)
        if request is None:
            return
        if entry.epoch == request.delivery.epoch:
            if entry.ids and request.prompt_scores_delivered < request.resolved.num_prompt_scores:
                self._replay(request)  # prompt log probabilities precede all tokens, so some were lost
                return
            self._computes(request, woken)
        verdict = request.delivery.delta(entry.epoch, entry.choice, entry.first_position, entry.ids)
        if verdict is Verdict.ACCEPT:
            request.stream.outbox.delta(
                entry.request_id,
                CLIENT_EPOCH,
                entry.choice,
                entry.first_position,
                entry.ids,
                entry.text,
                entry.logprobs,
            )
            woken.add(request.stream.wake)
            self._backlog.computed(count_delta(self._metrics, request, entry.choice, len(entry.ids), now))
            self._rate_limiter.computed(request.tenant, len(entry.ids), now)
        elif verdict is Verdict.REDIRECT:
            self._replay(request)

    def _choice_ended(
        self, request_id: str, epoch: int, choice: int, end: ChoiceEnd, woken: set[asyncio.Event]
    ) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        verdict = request.delivery.end(epoch, choice, end)
        if verdict is Verdict.ACCEPT:
            if end.finish_reason is not FinishReason.ERROR:
                self._charge_prompt(request)
            self._deliver_end(request, choice, end)
            self._heard(request)
            woken.add(request.stream.wake)
            if request.delivery.finished:
                self._finish(request)
        elif verdict is Verdict.REDIRECT:
            self._replay(request)

    def _replay(self, request: Request) -> None:
        self._end_if(request, self._failover.replay(request))

    # Ends

    def _end_failed(self, failed: Iterable[Failed]) -> None:
        for request, error in failed:
            self.end(request, FinishReason.ERROR, error)

    def _end_if(self, request: Request, error: Status | None) -> None:
        if error is not None:
            self.end(request, FinishReason.ERROR, error)

    def _deliver_end(self, request: Request, choice: int, end: ChoiceEnd) -> None:
        self._metrics.choice_ended(end.finish_reason.name.lower())
        request.stream.outbox.end(request.request_id, CLIENT_EPOCH, choice, end)

    def _finish(self, request: Request) -> None:
        """Every choice has ended: release everything, send Done to the engine and the usage to the client."""
        resolved, delivery, now = request.resolved, request.delivery, time.monotonic()
        usage = inference_pb2.Usage(
            prompt_tokens=resolved.prompt_tokens,
            cached_tokens=delivery.cached_tokens or 0,
            completion_tokens=delivery.completion_tokens,
        )
        del self._requests[request.request_id]
        self._quota.give_back(request.tenant, resolved.held_bytes)
        self._failover.forget(request)
        self._models.leave(resolved.generation)
        if request.computing_since is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
            self._backlog.ended(request.tenant, tokens, now - request.computing_since)
        count_request(self._metrics, request, usage, now)
        log_finished(request, usage)
        if request.trace is not None:
            request.trace.finished(usage, delivery, request.first_delta_at)
        self._close(request, usage)

    def _end_unadmitted(self, request: Request, finish_reason: FinishReason, error: Status | None) -> None:
        if error is not None:
            self._metrics.request_refused(error.code.name, request.tenant)
        else:
            self._metrics.choice_ended(finish_reason.name.lower())
        if finish_reason is FinishReason.DEADLINE and (reason := self._models.no_route_reason):
            error = Status(Code.DEADLINE_EXCEEDED, f"the timeout passed while the request waited for a route: {reason}")
        refused = refused_before_admission(finish_reason, error)
        log_refused(request, refused)
        if request.trace is not None:
            request.trace.refused(refused)
        self._close(request, refused)

    def _close(self, request: Request, closing: inference_pb2.Usage | inference_pb2.Refused) -> None:
        request.finish()
        self._backlog.leave(request.request_id)
        self._rate_limiter.leave(request.request_id)
        if request.deadline_timer is not None:
            request.deadline_timer.cancel()
        request.stream.outbox.close(request.request_id, CLIENT_EPOCH, closing)
        request.stream.wake.set()
