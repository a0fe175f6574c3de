"""Delivers the frames of detokenizers to clients: prompt progress, log probabilities of prompts, deltas, and ends.

``services.ring.delivery`` judges whether a frame continues what was delivered; if not, ``Failover`` has it replayed.
"""

from __future__ import annotations

import time

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2

from services.common.rpc.shared_messages import read_logprobs
from services.processor.admission.admission import Admission
from services.processor.failover import Failover
from services.processor.in_flight import InFlightRequests
from services.processor.inference_messages import TextEntry, ends_of, entries_of
from services.processor.linked_peers import LinkedPeers
from services.processor.metrics import ProcessorMetrics
from services.processor.request import Request
from services.processor.request_log import count_delta
from services.ring.delivery import Verdict
from services.ring.events import ChoiceEnd, FinishReason, Prefill


class TextOutput:
    """Delivers detokenizers' frames to clients' outboxes."""

    def __init__(
        self,
        in_flight: InFlightRequests,
        failover: Failover,
        admission: Admission,
        peers: LinkedPeers,
        metrics: ProcessorMetrics,
    ) -> None:
        self._in_flight = in_flight
        self._failover = failover
        self._admission = admission
        self._peers = peers
        self._metrics = metrics

    def receive(self, outputs: detokenizer_pb2.TextOutputs) -> None:
        """In a frame's order: prompt progress, log probabilities, deltas, ends."""
        now = time.monotonic()
        for prefill in outputs.prefills:
            self._prefilled(prefill)
        for scored in outputs.prompt_logprobs:
            self._prompt_logprobs(scored)
        for entry in entries_of(outputs):
            self._delta(entry, now)
        for request_id, epoch, choice, end in ends_of(outputs):
            self._choice_ended(request_id, epoch, choice, end)

    def _prefilled(self, prefill: engine_pb2.Prefill) -> None:
        if (request := self._in_flight.find(prefill.request_id, prefill.epoch)) is None:
            return
        if not self._begin_output(request) or prefill.computed_tokens == 0:
            return  # it begins; the cached tokens are known once some are computed
        if request.delivery.cached_tokens is None:
            request.delivery.cached_tokens = prefill.cached_tokens
        if request.resolved.wants_prefill_progress:
            progress = Prefill(prefill.prompt_tokens, prefill.computed_tokens, prefill.cached_tokens)
            request.stream.outbox.prefill(prefill.request_id, progress)

    def _prompt_logprobs(self, scored: engine_pb2.PromptLogprobs) -> None:
        if (request := self._in_flight.find(scored.request_id, scored.epoch)) is None:
            return
        delivered = request.prompt_logprobs_delivered
        if scored.offset > delivered:
            self._failover.replay(request)
            return
        fresh = scored.offset + len(scored.logprobs.logprobs) - delivered
        if fresh <= 0:
            return
        if not self._begin_output(request):
            return
        scores = read_logprobs(scored.logprobs)
        scores = scores.part(len(scores) - fresh, len(scores))
        request.stream.outbox.prompt_logprobs(scored.request_id, delivered, scores)
        request.prompt_logprobs_delivered += fresh

    def _delta(self, entry: TextEntry, now: float) -> None:
        if (request := self._in_flight.find(entry.request_id, entry.epoch)) is None:
            return
        if entry.ids and request.prompt_logprobs_delivered < request.resolved.num_prompt_logprobs:
            self._failover.replay(request)  # prompt log probabilities precede all tokens, so some were lost
            return
        if not self._begin_output(request):
            return
        verdict = request.delivery.delta(entry.epoch, entry.choice, entry.first_position, entry.ids, entry.parts)
        if verdict is Verdict.ACCEPT:
            request.stream.outbox.delta(
                entry.request_id,
                entry.choice,
                entry.first_position,
                entry.ids,
                entry.text,
                entry.logprobs,
                entry.parts,
            )
            computed = count_delta(self._metrics, request, entry.choice, len(entry.ids), now)
            self._admission.delivered(request, len(entry.ids), computed, now)
        elif verdict is Verdict.REPLAY:
            self._failover.replay(request)

    def _choice_ended(self, request_id: str, epoch: int, choice: int, end: ChoiceEnd) -> None:
        if (request := self._in_flight.find(request_id, epoch)) is None:
            return
        verdict = request.delivery.end(epoch, choice, end)
        if verdict is Verdict.ACCEPT:
            if end.finish_reason is FinishReason.DEADLINE:
                self._admission.abandoned(request, time.monotonic())
            self._in_flight.heard(request, charge=end.finish_reason is not FinishReason.ERROR)
            self._in_flight.end_choice(request, choice, end)
        elif verdict is Verdict.REPLAY:
            self._failover.replay(request)

    def _begin_output(self, request: Request) -> bool:
        """An engine computes the request: charge the prompt, and send model and numerics before any output.

        False, and nothing is done, if its first output comes when the engine is lost, whose numerics are not known any
        more: the next route computes the output again.
        """
        if not request.started_sent:
            if request.route is None:
                return False
            request.started_sent = True
            engine = self._peers.engines.get(request.route.engine)
            numerics = engine.numerics if engine is not None else ""
            started = inference_pb2.Started(
                model_digest=request.resolved.model.model_digest,
                numerics=numerics,
                identical=not request.delivery.completion_tokens or numerics == request.numerics,
                reason=request.route_lost_reason if request.numerics else "",
            )
            request.numerics = numerics
            request.stream.outbox.notice(request.request_id, started)
        self._in_flight.heard(request)
        return True
