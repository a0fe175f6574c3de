"""The requests in flight, from admission to end: starts and ends them, and responds to their clients.

``Dispatcher`` sends a request on its first route; ``Failover`` moves it when a peer is lost; ``TextOutput`` delivers
its output, ``PooledOutput`` the results of its inputs.
"""

from __future__ import annotations

import time

from ringline.inference.v1 import inference_pb2

from services.common.rpc.shared_messages import status_to_proto
from services.processor.admission.admission import Admission
from services.processor.dispatcher import Dispatcher
from services.processor.inference_messages import refused_before_admission
from services.processor.metrics import ProcessorMetrics
from services.processor.pooling.plan import PooledAnswer
from services.processor.request import Request, ResolvedRequest
from services.processor.request_log import count_request, log_finished, log_refused
from services.processor.served_models import ServedModels
from services.ring.errors import Code, Refused, Status
from services.ring.events import ChoiceEnd, FinishReason


class InFlightRequests:
    """All requests from admission to end. Every end of a request or choice is written here, once."""

    def __init__(
        self, models: ServedModels, admission: Admission, dispatcher: Dispatcher, metrics: ProcessorMetrics
    ) -> None:
        self._models = models
        self._admission = admission
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def find(self, request_id: str, epoch: int) -> Request | None:
        """The request that a frame is about; None if it has ended, or the frame belongs to an earlier epoch."""
        request = self._requests.get(request_id)
        return request if request is not None and request.delivery.epoch == epoch else None

    def start(self, request: Request, outcome: ResolvedRequest | Status) -> None:
        """Put a tokenized request in flight and send it to an engine; an error as ``outcome`` ends it."""
        if isinstance(outcome, Status):
            self.end(request, FinishReason.ERROR, outcome)
        elif request.deadline is not None and time.monotonic() >= request.deadline:
            self.end(request, FinishReason.DEADLINE)
        else:
            try:
                self._admission.admit(request, outcome)
            except Refused as refused:
                self.end(request, FinishReason.ERROR, refused.status)
            else:
                self._start(request, outcome)

    def _start(self, request: Request, resolved: ResolvedRequest) -> None:
        self._models.held.enter(resolved.generation)
        self._requests[request.request_id] = request
        # Serialized messages of one type, concatenated, are one message with the fields of both.
        server_request_id = inference_pb2.Admitted(server_request_id=request.request_id)
        admitted = resolved.packed_admitted + server_request_id.SerializeToString()
        if resolved.answer_plan is None:  # else the answer is all that its client gets
            request.stream.outbox.open(request.request_id, admitted, len(admitted))
        now = time.monotonic()
        self._metrics.admitted(now - request.arrived_at)
        request.trace.admitted(resolved.prompt_tokens, resolved.model.model)
        request.route_timeout.lost(now)
        if error := self._dispatcher.route(request, "no engine and detokenizer are joined"):
            self.end(request, FinishReason.ERROR, error)

    def end_choice(self, request: Request, choice: int, end: ChoiceEnd) -> None:
        """An engine ended a choice. The request ends with its last choice."""
        self._deliver_end(request, choice, end)
        if request.delivery.finished:
            self._finish(request)

    def end(self, request: Request, finish_reason: FinishReason, error: Status | None = None) -> None:
        """End a request at once, with what was delivered; its engine gets ``Done``. Idempotent."""
        if request.finished:
            return
        if not request.admitted:
            self._end_unadmitted(request, finish_reason, error)
            return
        if finish_reason is not FinishReason.ERROR and request.route is not None:
            self._admission.abandoned(request, time.monotonic())
        plan = request.resolved.answer_plan
        failure = None if plan is None else _failure(request, finish_reason, error)
        for choice, end in request.delivery.abort(finish_reason, error).items():
            if failure is None:
                self._deliver_end(request, choice, end)
            else:
                self._metrics.choice_ended(end.finish_reason.name.lower())
        self._finish(request, failure)

    def heard(self, request: Request, *, charge: bool = True) -> None:
        """An engine computes a request. ``charge`` its prompt unless it failed."""
        if charge:
            self._admission.charge_prompt(request)
        request.heard()
        if request.computing_since is None:
            request.computing_since = time.monotonic()
            self._admission.begun(request)

    def answer(self, request: Request, answer: PooledAnswer) -> None:
        """End a request whose inputs are pooled with its answer."""
        self._finish(request, answer)

    def _deliver_end(self, request: Request, choice: int, end: ChoiceEnd) -> None:
        self._metrics.choice_ended(end.finish_reason.name.lower())
        request.stream.outbox.end(request.request_id, choice, end)

    def _finish(self, request: Request, closing: PooledAnswer | inference_pb2.Refused | None = None) -> None:
        """Every choice has ended: release everything, send Done to the engine and ``closing`` (usage) to the client."""
        resolved, delivery, now = request.resolved, request.delivery, time.monotonic()
        usage = usage_of(request)
        del self._requests[request.request_id]
        self._dispatcher.forget(request)
        self._models.held.leave(resolved.generation)
        count_request(self._metrics, request, usage, now)
        log_finished(request, usage)
        request.trace.finished(usage, delivery, request.first_delta_at)
        self._close(request, closing or usage, now)

    def _end_unadmitted(self, request: Request, finish_reason: FinishReason, error: Status | None) -> None:
        if error is not None:
            self._metrics.request_refused(error.code.name, request.tenant)
        else:
            self._metrics.choice_ended(finish_reason.name.lower())
        if finish_reason is FinishReason.DEADLINE and (reason := self._models.no_route_reason):
            error = Status(Code.DEADLINE_EXCEEDED, f"the timeout passed while the request waited for a route: {reason}")
        refused = refused_before_admission(finish_reason, error)
        log_refused(request, refused)
        request.trace.refused(refused)
        self._close(request, refused, time.monotonic())

    def _close(
        self, request: Request, closing: inference_pb2.Usage | inference_pb2.Refused | PooledAnswer, now: float
    ) -> None:
        self._admission.leave(request, now)
        request.finish()
        size = len(closing.packed) if isinstance(closing, PooledAnswer) else 0
        request.stream.outbox.close(request.request_id, closing, size)


def usage_of(request: Request) -> inference_pb2.Usage:
    """The tokens of an admitted request so far."""
    resolved, delivery = request.resolved, request.delivery
    return inference_pb2.Usage(
        prompt_tokens=resolved.prompt_tokens,
        cached_tokens=delivery.cached_tokens or 0,
        completion_tokens=delivery.completion_tokens,
        reasoning_tokens=delivery.reasoning_tokens,
        media_tokens=resolved.media_tokens,
        accepted_draft_tokens=delivery.accepted_drafts,
        rejected_draft_tokens=delivery.rejected_drafts,
    )


def _failure(request: Request, finish_reason: FinishReason, error: Status | None) -> inference_pb2.Refused:
    """The end of a request whose inputs are pooled, and which has no answer."""
    delivery = request.delivery
    computed = f"{len(delivery.choices) - delivery.num_unfinished} of its {len(delivery.choices)} inputs were computed"
    match finish_reason:
        case FinishReason.CANCELLED:
            status = Status(Code.CANCELLED, f"cancelled when {computed}")
        case FinishReason.DEADLINE:
            status = Status(Code.DEADLINE_EXCEEDED, f"its deadline passed when {computed}")
        case _:
            status = error or Status(Code.INTERNAL, f"an engine ended it without a reason when {computed}")
    return inference_pb2.Refused(status=status_to_proto(status))
