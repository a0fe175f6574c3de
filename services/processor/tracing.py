"""The processor's part of a request's trace: the request itself, its way to an engine, its delivery, its failovers.

Made of times that are noted anyway, when the request is over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringline.inference.v1 import inference_pb2

from services.ring.errors import Code, Status
from services.ring.events import FinishReason
from services.ring.routes import Route
from services.rpc.protobuf import status_from_proto
from services.telemetry.tracing import MAX_TRACEPARENT, Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from services.processor.client import ClientRequest, LiveRequest

MAX_EVENTS = 64
"""Of one request: one that goes round and round has no longer a trace than others."""
_NO_ERRORS = {Code.CANCELLED: FinishReason.CANCELLED, Code.DEADLINE_EXCEEDED: FinishReason.DEADLINE}


class RequestTraces:
    """Begins the traces of this process's requests."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(
        self, carrier: Mapping[str, str], request: inference_pb2.GenerateRequest, ring_id: str, arrived: float
    ) -> RequestTrace | None:
        """A request arrived on a stream whose metadata is ``carrier``; None if it is not to be traced."""
        if 0 < len(request.traceparent) <= MAX_TRACEPARENT:
            carrier = {"traceparent": request.traceparent}
        span = self._tracing.begin("request", carrier, arrived)
        if span is None:
            return None
        span.set_attribute("ringline.request_id", ring_id)
        return RequestTrace(self._tracing, span, arrived)


class RequestTrace:
    """Of one request, from its arrival until its end is written."""

    def __init__(self, tracing: Tracing, span: Span, arrived: float) -> None:
        self._tracing = tracing
        self._span = span
        self._arrived = arrived
        self._events = 0
        self._first_delta_at: float | None = None
        self._tokens = 0
        self.traceparent = tracing.traceparent(span)
        """For the processes that the request goes through."""

    def admitted(self, prompt_tokens: int, model: str) -> None:
        """It is tokenized, and sets out."""
        tokens = {"gen_ai.usage.input_tokens": prompt_tokens}
        self._tracing.span("tokenize", self.traceparent, self._arrived, time.monotonic(), tokens)
        self._span.set_attributes({**tokens, "gen_ai.request.model": model})

    def routed(self, route: Route, epoch: int, changed: str = "", reason: str = "") -> None:
        """It was given a route; ``changed`` for what, if it had one before."""
        self._events += 1
        if self._events > MAX_EVENTS:
            return
        attributes: dict[str, str | int] = {
            "engine": route.engine.name,
            "detokenizer": route.detokenizer.name,
            "epoch": epoch,
        }
        if changed:
            attributes |= {"changed": changed, "reason": reason}
        self._span.add_event("failover" if changed else "submitted", attributes, self._now())

    def closed(self, call: ClientRequest, closing: inference_pb2.Usage | inference_pb2.Refused) -> None:
        """Its end is known."""
        if isinstance(closing, inference_pb2.Refused):
            self._refused(status_from_proto(closing.status))
        elif call.live is not None:
            self._finished(call.live, closing)

    def _finished(self, live: LiveRequest, usage: inference_pb2.Usage) -> None:
        self._first_delta_at, self._tokens = live.first_delta_at, usage.completion_tokens
        ends = [state.end for state in live.ring.choices.values() if state.end is not None]
        self._span.set_attributes(
            {
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.response.finish_reasons": [end.finish_reason.name.lower() for end in ends],
                "ringline.cached_tokens": usage.cached_tokens,
            }
        )
        if live.first_delta_at is not None:
            self._span.set_attribute("ringline.time_to_first_token", live.first_delta_at - self._arrived)
        if error := next((end.error for end in ends if end.error is not None), None):
            self._failed(FinishReason.ERROR.name, error.code)

    def refused(self, status: Status) -> None:
        """It was not taken; that is the end of it."""
        self._refused(status)
        self._span.end(self._now())

    def delivered(self) -> None:
        """Its end is written, or nobody is there to take it."""
        now = time.monotonic()
        if self._first_delta_at is not None:
            attributes = {"gen_ai.usage.output_tokens": self._tokens}
            self._tracing.span("deliver", self.traceparent, self._first_delta_at, now, attributes)
        self._span.end(self._tracing.nanoseconds(now))

    def _refused(self, status: Status) -> None:
        """A client that cancels, or whose time is over, is no error."""
        finish_reason = _NO_ERRORS.get(status.code)
        self._failed(
            FinishReason.ERROR.name if finish_reason is None else finish_reason.name,
            status.code if finish_reason is None else None,
        )

    def _failed(self, finish_reason: str, code: int | None) -> None:
        """Messages may hold what a client wrote, and are left out."""
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("ringline.finish_reason", finish_reason.lower())
        if code is not None:
            self._span.set_attribute("rpc.grpc.status_code", int(code))
            self._span.set_status(StatusCode.ERROR)

    def _now(self) -> int:
        return self._tracing.nanoseconds(time.monotonic())
