"""What is told of requests to whoever runs the processor: their times, and one log line each."""

from __future__ import annotations

import logging
import time

import structlog
from ringline.inference.v1 import inference_pb2

from services.processor.client import ClientRequest, LiveRequest
from services.processor.metrics import ProcessorMetrics
from services.rpc.protobuf import status_from_proto

log = structlog.get_logger(__name__)


def count_delta(metrics: ProcessorMetrics, live: LiveRequest, choice: int, tokens: int, now: float) -> int:
    """Tokens of a choice were delivered; returns how many were computed, with the first of them also the prompt's and
    those that the request was resumed with.
    """
    computed = tokens
    if not live.last_delta_at:
        live.first_delta_at = now
        metrics.prefilled(live.ring.prompt_tokens, now - (live.begun or now))
        computed += live.ring.prompt_tokens + live.num_resumed
    last = live.last_delta_at.get(choice)
    if last is None:
        metrics.first_token(now - live.call.arrived, tokens)
    else:
        metrics.tokens(tokens, now - last)
    live.last_delta_at[choice] = now
    return computed


def count_request(metrics: ProcessorMetrics, live: LiveRequest, now: float) -> None:
    """A request has ended."""
    ring, first = live.ring, live.first_delta_at
    decoded = None if first is None else max(live.last_delta_at.values()) - first
    seconds = now - live.call.arrived
    metrics.request_ended(live.call.client.tenant, ring.prompt_tokens, ring.completion_tokens, seconds, decoded)


def log_finished(call: ClientRequest, closing: inference_pb2.Usage | inference_pb2.Refused) -> None:
    """The line that joins the client's name of a request to the ring's, under which the other services log it."""
    if not log.is_enabled_for(logging.DEBUG):
        return  # who drops a thousand requests at once must not hold up the others for lines that nobody reads
    told = log.bind(
        request_id=call.ring_id,
        client_request_id=call.client_id,
        tenant=call.client.tenant,
        seconds=round(time.monotonic() - call.arrived, 4),
    )
    if isinstance(closing, inference_pb2.Refused):
        status = status_from_proto(closing.status)
        told.debug("request refused", code=status.code.name, reason=status.reason.name, field=status.field)
        return
    ends = {choice: state.end for choice, state in call.live.ring.choices.items()} if call.live is not None else {}
    told.debug(
        "request finished",
        finish_reasons={choice: end and end.finish_reason.name for choice, end in ends.items()},
        prompt_tokens=closing.prompt_tokens,
        cached_tokens=closing.cached_tokens,
        completion_tokens=closing.completion_tokens,
    )
