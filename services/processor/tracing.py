"""The processor's spans of a traced request: request, tokenization, delivery; failovers are events.

The spans of tokenization and delivery are recorded afterwards, from times kept anyway.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringline.inference.v1 import inference_pb2

from services.common.rpc.shared_messages import status_from_proto
from services.common.telemetry.tracing import MAX_TRACEPARENT, Tracing
from services.ring.delivery import Delivery
from services.ring.errors import Code, Status
from services.ring.events import FinishReason
from services.ring.routing_logic import Route

if TYPE_CHECKING:
    from opentelemetry.trace import Span

MAX_EVENTS = 64
"""Maximum routing events per trace: a request may have any number of failovers."""
_NO_ERRORS = {Code.CANCELLED: FinishReason.CANCELLED, Code.DEADLINE_EXCEEDED: FinishReason.DEADLINE}


class RequestTraces:
    """Decides which requests are traced, and begins their traces."""

    def __init__(self, tracing: Tracing | None) -> None:
        """Without ``tracing`` no request is traced."""
        self._tracing = tracing

    def begin(self, carrier: Mapping[str, str], traceparent: str, request_id: str, arrived_at: float) -> RequestTrace:
        """The trace of a request; ``NO_TRACE`` if it is not sampled.

        The request's own ``traceparent`` takes precedence over its stream's ``carrier``.
        """
        if self._tracing is None:
            return NO_TRACE
        if 0 < len(traceparent) <= MAX_TRACEPARENT:
            carrier = {"traceparent": traceparent}
        span = self._tracing.begin("request", carrier, arrived_at)
        if span is None:
            return NO_TRACE
        span.set_attribute("ringline.request_id", request_id)
        return _SampledTrace(self._tracing, span, arrived_at)


class RequestTrace:
    """A request's trace, from its arrival until its end is written. This class records nothing."""

    traceparent = ""
    """Sent on to engines and detokenizers."""

    def admitted(self, prompt_tokens: int, model: str) -> None: ...

    def routed(self, route: Route, epoch: int, changed: str = "", reason: str = "") -> None:
        """The request got a route; ``changed``: what differs from the last (empty for the first)."""

    def finished(self, usage: inference_pb2.Usage, delivery: Delivery, first_delta_at: float | None) -> None:
        """Every choice has ended; its end is still to be delivered."""

    def refused(self, refused: inference_pb2.Refused) -> None:
        """The request ended before it was admitted; its end is still to be delivered."""

    def refused_at_once(self, status: Status) -> None:
        """The request was refused on arrival: the trace ends here."""

    def delivered(self) -> None:
        """The request's end is written, or its client is gone."""


NO_TRACE = RequestTrace()


class _SampledTrace(RequestTrace):
    def __init__(self, tracing: Tracing, span: Span, arrived_at: float) -> None:
        self._tracing = tracing
        self._span = span
        self._arrived_at = arrived_at
        self._events = 0
        self._first_delta_at: float | None = None
        self._tokens = 0
        self.traceparent = tracing.traceparent(span)

    def admitted(self, prompt_tokens: int, model: str) -> None:
        tokens = {"gen_ai.usage.input_tokens": prompt_tokens}
        self._tracing.span("tokenize", self.traceparent, self._arrived_at, time.monotonic(), tokens)
        self._span.set_attributes({**tokens, "gen_ai.request.model": model})

    def routed(self, route: Route, epoch: int, changed: str = "", reason: str = "") -> None:
        self._events += 1
        if self._events > MAX_EVENTS:
            return
        attributes: dict[str, str | int] = {"engine": route.engine.name, "epoch": epoch}
        if route.detokenizer is not None:
            attributes["detokenizer"] = route.detokenizer.name
        if changed:
            attributes |= {"changed": changed, "reason": reason}
        self._span.add_event("failover" if changed else "submitted", attributes, self._now())

    def finished(self, usage: inference_pb2.Usage, delivery: Delivery, first_delta_at: float | None) -> None:
        self._first_delta_at, self._tokens = first_delta_at, usage.completion_tokens
        ends = [state.end for state in delivery.choices.values() if state.end is not None]
        reasons = [end.finish_reason.name.lower() for end in ends]
        if any(end.pooled is not None for end in ends):  # of many inputs: each reason once
            reasons = list(dict.fromkeys(reasons))
        self._span.set_attributes(
            {
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.response.finish_reasons": reasons,
                "ringline.cached_tokens": usage.cached_tokens,
            }
        )
        if first_delta_at is not None:
            self._span.set_attribute("ringline.time_to_first_token", first_delta_at - self._arrived_at)
        if error := next((end.error for end in ends if end.error is not None), None):
            self._failed(FinishReason.ERROR.name, error.code)

    def refused(self, refused: inference_pb2.Refused) -> None:
        self._refused(status_from_proto(refused.status))

    def refused_at_once(self, status: Status) -> None:
        self._refused(status)
        self._span.end(self._now())

    def delivered(self) -> None:
        now = time.monotonic()
        if self._first_delta_at is not None:
            attributes = {"gen_ai.usage.output_tokens": self._tokens}
            self._tracing.span("deliver", self.traceparent, self._first_delta_at, now, attributes)
        self._span.end(self._tracing.nanoseconds(now))

    def _refused(self, status: Status) -> None:
        """Cancellation by the client and an expired deadline do not count as errors."""
        finish_reason = _NO_ERRORS.get(status.code)
        self._failed(
            FinishReason.ERROR.name if finish_reason is None else finish_reason.name,
            status.code if finish_reason is None else None,
        )

    def _failed(self, finish_reason: str, code: int | None) -> None:
        """The trace leaves out the status message, which may quote the client's input."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("ringline.finish_reason", finish_reason.lower())
        if code is not None:
            self._span.set_attribute("rpc.grpc.status_code", int(code))
            self._span.set_status(StatusCode.ERROR)

    def _now(self) -> int:
        return self._tracing.nanoseconds(time.monotonic())
