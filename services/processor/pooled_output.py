"""Delivers engines' results to requests that are pooled, and their answers to clients once all results are there."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import structlog
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2

from services.common.process.run import DaemonThreadPool
from services.common.rpc.shared_messages import adapter_to_proto, read_end
from services.processor.admission.admission import Admission
from services.processor.dispatcher import Dispatcher
from services.processor.in_flight import InFlightRequests, usage_of
from services.processor.linked_peers import LinkedPeers
from services.processor.metrics import ProcessorMetrics
from services.processor.pooling.answers import compose, input_tokens
from services.processor.pooling.plan import AnswerForm, AnswerPlan, PooledAnswer
from services.processor.request import Request
from services.ring.delivery import Verdict
from services.ring.errors import Code, Status
from services.ring.events import ChoiceEnd, FinishReason
from services.ring.identity import PeerId

log = structlog.get_logger(__name__)

SMALL_BYTES, SMALL_COMPARED_BYTES = 256 << 10, 32 << 10
"""An answer of results up to this size is composed on the event loop, in about a millisecond at most."""


class PooledOutput:
    """The results of all requests that are pooled."""

    def __init__(
        self,
        in_flight: InFlightRequests,
        dispatcher: Dispatcher,
        admission: Admission,
        peers: LinkedPeers,
        metrics: ProcessorMetrics,
    ) -> None:
        self._in_flight = in_flight
        self._dispatcher = dispatcher
        self._admission = admission
        self._peers = peers
        self._metrics = metrics
        self._pool = DaemonThreadPool(1, "answers")
        """Composes large answers, one after another."""

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def receive(self, engine: PeerId, outputs: engine_pb2.StepOutputs) -> None:
        """What an engine sent to this processor itself. In a frame's order: requests, beginnings, ends."""
        now = time.monotonic()
        for opened in outputs.opened:
            self._opened(engine, opened)
        for prefill in outputs.prefills:
            self._begun(prefill)
        for finished in outputs.finished:
            request = self._in_flight.find(finished.request_id, finished.epoch)
            if request is not None and request.resolved.answer_plan is not None:
                self._ended(engine, request, finished.choice, read_end(finished), now)

    def _opened(self, engine: PeerId, opened: engine_pb2.Opened) -> None:
        """An engine tells of a request: have it forgotten if it went elsewhere while the link was cut."""
        request = self._in_flight.find(opened.request_id, opened.epoch)
        if request is None or request.route is None or request.route.engine != engine:
            self._peers.done(engine, engine_pb2.Done(request_id=opened.request_id, epoch=opened.epoch))

    def _begun(self, prefill: engine_pb2.Prefill) -> None:
        request = self._in_flight.find(prefill.request_id, prefill.epoch)
        if request is None or request.resolved.answer_plan is None:
            return
        self._in_flight.heard(request)
        if prefill.computed_tokens:  # inputs that are computed again elsewhere add nothing
            cached = min(prefill.cached_tokens, request.resolved.prompt_tokens)
            request.delivery.cached_tokens = max(request.delivery.cached_tokens or 0, cached)

    def _ended(self, engine: PeerId, request: Request, choice: int, end: ChoiceEnd, now: float) -> None:
        plan = request.resolved.answer_plan
        assert plan is not None
        if choice not in request.delivery.choices:
            return
        end = _checked(end, engine, plan, choice)
        if request.delivery.end(request.delivery.epoch, choice, end) is not Verdict.ACCEPT:
            return
        self._in_flight.heard(request, charge=end.finish_reason is not FinishReason.ERROR)
        if end.finish_reason is not FinishReason.STOP:
            self._metrics.choice_ended(end.finish_reason.name.lower())
            error = None if end.error is None else _at_place(end.error, plan.places[choice])
            self._in_flight.end(request, end.finish_reason, error)
            return
        node = self._peers.engines.get(engine)
        request.numerics_seen.add("" if node is None else node.numerics)
        self._metrics.choice_ended("stop")
        self._admission.delivered(request, 0, plan.input_tokens[choice], now)
        if request.delivery.finished:
            self._answer(request, plan, now)

    def _answer(self, request: Request, plan: AnswerPlan, now: float) -> None:
        """All results are there: the engine may forget the request, and the client gets its answer."""
        self._dispatcher.forget(request)
        self._metrics.prefilled(request.resolved.prompt_tokens, now - (request.computing_since or now))
        self._metrics.pooled_inputs += len(plan.places)
        work = partial(compose, plan, _results(request), _report(request, plan))
        if plan.result_bytes <= (SMALL_COMPARED_BYTES if plan.form is AnswerForm.COMPARED else SMALL_BYTES):
            self._in_flight.answer(request, work())
        else:
            composed = asyncio.get_running_loop().run_in_executor(self._pool, work)
            composed.add_done_callback(partial(self._composed, request))

    def _composed(self, request: Request, composed: asyncio.Future[PooledAnswer]) -> None:
        if composed.cancelled() or request.finished:
            return
        if (error := composed.exception()) is None:
            self._in_flight.answer(request, composed.result())
            return
        log.error("an answer cannot be composed", request_id=request.request_id, error=repr(error))
        text = f"internal error; find {request.request_id} in the processor's log"
        self._in_flight.end(request, FinishReason.ERROR, Status(Code.INTERNAL, text))


def _results(request: Request) -> list[bytes]:
    """The results of all inputs, in order."""
    ends = (state.end for _, state in sorted(request.delivery.choices.items()))
    return [end.pooled.values for end in ends if end is not None and end.pooled is not None]


def _report(request: Request, plan: AnswerPlan) -> inference_pb2.PoolingReport:
    model, numerics = request.resolved.model, request.numerics_seen
    return inference_pb2.PoolingReport(
        usage=usage_of(request),
        input_tokens=input_tokens(plan),
        model=model.model,
        model_digest=model.model_digest,
        numerics=next(iter(numerics)) if len(numerics) == 1 else "",
        server_request_id=request.request_id,
        adapter=adapter_to_proto(request.resolved.needs.adapter),
    )


def _checked(end: ChoiceEnd, engine: PeerId, plan: AnswerPlan, choice: int) -> ChoiceEnd:
    """The end of an input, or an error in its place if it is not a result that the plan expects."""
    if end.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        return ChoiceEnd(end.finish_reason, 0, error=end.error)
    size = 0 if end.pooled is None else len(end.pooled.values)
    if end.finish_reason is FinishReason.STOP and size == plan.nbytes(choice):
        return ChoiceEnd(FinishReason.STOP, 0, pooled=end.pooled)
    message = f"engine {engine.name} sent a result of {size} bytes: expected {plan.nbytes(choice)}"
    return ChoiceEnd(FinishReason.ERROR, 0, error=Status(Code.INTERNAL, message))


def _at_place(status: Status, place: str) -> Status:
    """The error of one input, which ends its request."""
    return Status(status.code, f"{place}: {status.message}", status.retry_after_ms, status.given_reason, place)
