"""Latency metrics of requests, and one log line at each end."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

import structlog
from ringline.inference.v1 import inference_pb2

from services.common.rpc.shared_messages import status_from_proto
from services.processor.metrics import ProcessorMetrics
from services.processor.request import Request

log = structlog.get_logger(__name__)


def count_delta(metrics: ProcessorMetrics, request: Request, choice: int, tokens: int, now: float) -> int:
    """Count a choice's delivered tokens; returns how many tokens were computed for them.

    A request's first delta also counts the tokens of its prompt and resumed ids.
    """
    computed = tokens
    if request.gateway is not None:
        request.gateway.delivered_tokens += tokens
    if not request.last_delta_at:
        request.first_delta_at = now
        prompt_tokens = request.resolved.prompt_tokens
        metrics.prefilled(prompt_tokens, now - (request.computing_since or now))
        computed += prompt_tokens + request.resolved.num_resumed
    last = request.last_delta_at.get(choice)
    if last is None:
        metrics.first_token(now - request.arrived_at, tokens)
    else:
        metrics.tokens(tokens, now - last)
    request.last_delta_at[choice] = now
    return computed


def count_request(metrics: ProcessorMetrics, request: Request, usage: inference_pb2.Usage, now: float) -> None:
    """Count an admitted request that has ended."""
    first = request.first_delta_at
    decode_seconds = None if first is None else max(request.last_delta_at.values()) - first
    seconds = now - request.arrived_at
    metrics.media_tokens += usage.media_tokens
    adapter = request.resolved.needs.adapter
    metrics.request_ended(
        request.tenant,
        usage.prompt_tokens,
        usage.completion_tokens,
        seconds,
        decode_seconds,
        "" if adapter is None else adapter.name,
    )


def log_finished(request: Request, usage: inference_pb2.Usage) -> None:
    """Log the end of an admitted request."""
    if not log.is_enabled_for(logging.DEBUG):
        return
    _bound_log(request).debug(
        "request finished",
        finish_reasons=_finish_reasons(request),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )


def _finish_reasons(request: Request) -> dict[Any, Any]:
    """Each choice's; of inputs that are pooled, which may be thousands, how many have each."""
    ends = {choice: state.end and state.end.finish_reason.name for choice, state in request.delivery.choices.items()}
    return ends if request.resolved.answer_plan is None else dict(Counter(ends.values()))


def log_refused(request: Request, refused: inference_pb2.Refused) -> None:
    """Log the end of a request that was not admitted."""
    if not log.is_enabled_for(logging.DEBUG):
        return  # a client that drops a thousand requests must not delay others by a thousand log lines
    status = status_from_proto(refused.status)
    _bound_log(request).debug("request refused", code=status.code.name, reason=status.reason.name, field=status.field)


def _bound_log(request: Request) -> Any:
    """A logger that adds the client's id of a request and its ring id, which the other services log."""
    return log.bind(
        request_id=request.request_id,
        client_request_id=request.client_request_id,
        tenant=request.tenant,
        seconds=round(time.monotonic() - request.arrived_at, 4),
    )
