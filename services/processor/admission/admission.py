"""Admission: applies every limit, and tracks what requests take of each until their ends.

A request enters, is admitted once tokenized, is begun by an engine, and leaves: one call each. What it takes is given
back once, even if several of the calls do so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial

from ringline.inference.v1 import inference_pb2

from services.processor.admission.backlog import Backlog
from services.processor.admission.constraint_resolution import is_constrained
from services.processor.admission.model_choice import Chosen, ModelChoices
from services.processor.admission.picture_stage import PictureStage
from services.processor.admission.rate_limiter import RateLimiter
from services.processor.admission.tokenization_job import OnResolved
from services.processor.admission.tokenization_queue import TokenizationQueue
from services.processor.media.chat_pictures import PictureSource, check_sources
from services.processor.pooling.plan import PoolingMessage
from services.processor.request import SEPARATOR, Asked, Request, RequestMessage, ResolvedRequest
from services.processor.suitability import SUITS, generates
from services.ring.errors import Refused, retry_after_ms
from services.ring.tenant_quota import TenantMemoryQuota

MAX_LIVE_BYTES = 256 << 20
"""Bytes that all requests in flight may take together; one alone may take more."""


class Admission:
    """The backlog, tenants' rate limits, the tokenization queue, and the memory of requests in flight."""

    def __init__(
        self,
        backlog: Backlog,
        rate_limiter: RateLimiter,
        queue: TokenizationQueue,
        pictures: PictureStage,
        choices: ModelChoices,
        *,
        max_live_bytes: int = MAX_LIVE_BYTES,
    ) -> None:
        self._choices = choices
        self._backlog = backlog
        self._rate_limiter = rate_limiter
        self._queue = queue
        self._pictures = pictures
        self._memory = TenantMemoryQuota(
            "prompt",
            "this processor",
            "prompts and outputs",
            max_live_bytes,
            lambda tenant: retry_after_ms(backlog.stay(tenant)),
        )

    @property
    def num_waiting(self) -> int:
        """Requests that no engine has begun."""
        return self._backlog.num_waiting

    def enter(
        self,
        request: Request,
        message: inference_pb2.GenerateRequest | PoolingMessage,
        sources: Sequence[PictureSource],
        now: float,
        on_resolved: OnResolved,
    ) -> None:
        """Check the limits and queue a received request for tokenization; raises ``Refused``.

        ``sources``: its pictures, which were taken out of the message.

        ``on_resolved`` (``InFlightRequests.start``) is called with the outcome, unless the request has left by then.
        """
        timeout = None if request.deadline is None else request.deadline - now
        tenant, kept = request.tenant, _kept(message)
        awaited = self._awaited(kept, tenant)
        self._backlog.check(awaited, tenant, timeout, _max_tokens(message))
        self._rate_limiter.check(tenant, now)
        check_sources(sources)
        request.message, request.awaited = kept, awaited
        if sources:
            self._pictures.add(request, sources, on_resolved, self._tokenize)
        else:
            self._queue.add(request, on_resolved)
        self._backlog.enter(request.request_id, awaited, tenant)
        self._rate_limiter.enter(request.request_id, tenant, now)

    def _awaited(self, message: RequestMessage, tenant: str) -> str:
        """What a request will wait for: a model's engines, by its name, or also adapters there, which is no sign that
        engines are slow; empty if the model is not known yet.
        """
        chosen = self._choices.choose(message.asked, tenant, SUITS.get(message.kind, generates))
        if not isinstance(chosen, Chosen):
            return ""
        name = chosen.model.limits.name
        return name if chosen.adapter is None else f"{name}{SEPARATOR}*"

    def admit(self, request: Request, resolved: ResolvedRequest) -> None:
        """Admit a tokenized request; raises ``Refused`` if it exceeds the quota of memory or queued tokens."""
        self._memory.check(request.tenant, resolved.held_bytes)
        self._rate_limiter.queue(request.request_id, request.tenant, resolved.prompt_tokens)
        self._memory.take(request.tenant, resolved.held_bytes)
        request.admit(resolved)
        self._backlog.admit(request.request_id, time.monotonic())
        self._pictures.admitted(request)

    def _tokenize(self, request: Request, on_resolved: OnResolved) -> None:
        """The request's pictures are prepared."""
        try:
            self._queue.add(request, on_resolved, partial(self._pictures.again, on_prepared=self._tokenize))
        except Refused as refused:
            on_resolved(request, refused.status)

    def begun(self, request: Request) -> None:
        """An engine computes a request. Idempotent."""
        self._backlog.leave(request.request_id)
        self._queue.begun(request.request_id)
        self._rate_limiter.begun(request.request_id)

    def charge_prompt(self, request: Request) -> None:
        """Charge the prompt to the tenant's rate limit, once.

        A request cancelled while an engine has it is charged too, even before any progress is reported: otherwise
        clients could have prompts computed for free.
        """
        if not request.prompt_charged:
            request.prompt_charged = True
            self._rate_limiter.computed(request.tenant, request.resolved.prompt_tokens, time.monotonic())

    def abandoned(self, request: Request, now: float) -> None:
        """Charge, once, what an engine may have computed for a request that its client gives up, or has no time for.

        Of a search none is delivered before its end. Its beams count as if they had grown as fast as they could: no
        engine takes less than a millisecond for a token of each.
        """
        self.charge_prompt(request)
        beams, since = request.resolved.beams, request.computing_since
        if beams and since is not None and not request.search_charged:
            request.search_charged = True
            grown = min(request.resolved.max_output, math.ceil(1000 * (now - since)))
            self._rate_limiter.computed(request.tenant, beams * grown, now)

    def delivered(self, request: Request, tokens: int, computed: int, now: float) -> None:
        """Charge delivered output ``tokens``; ``computed``: tokens that engines computed for them, prompt included.

        For the choices of a search, all of its beams were computed.
        """
        self._backlog.computed(request.awaited, computed)
        if request.resolved.beams:
            request.search_charged = True
            tokens = -(-tokens * request.resolved.beams // request.resolved.num_choices)
        self._rate_limiter.computed(request.tenant, tokens, now)

    def leave(self, request: Request, now: float) -> None:
        """A request is about to end: give back everything it takes."""
        if request.admitted:
            self._memory.give_back(request.tenant, request.resolved.held_bytes)
            if request.computing_since is not None:
                tokens = request.resolved.prompt_tokens + request.delivery.completion_tokens
                seconds = now - request.computing_since
                self._backlog.ended(request.awaited, request.tenant, tokens, seconds)
        else:
            self._queue.remove(request)
        self._pictures.leave(request)
        self.begun(request)
        self._rate_limiter.leave(request.request_id)

    def tick(self, now: float) -> None:
        """Measure throughput, forget idle tenants, queue what engines may soon need. Call a few times a second."""
        self._backlog.tick(now)
        self._rate_limiter.tick(now)
        self._queue.release()


def _max_tokens(message: inference_pb2.GenerateRequest | PoolingMessage) -> int | None:
    """The most tokens that a choice may have; None if its client does not say."""
    if not isinstance(message, inference_pb2.GenerateRequest) or not message.stopping.HasField("max_tokens"):
        return None
    return message.stopping.max_tokens


def _kept(message: inference_pb2.GenerateRequest | PoolingMessage) -> RequestMessage:
    packed = message.SerializeToString()
    if not isinstance(message, inference_pb2.GenerateRequest):
        asked = Asked(message.model, message.options.adapter)
        return RequestMessage(packed, asked, message.options.priority, kind=type(message))
    asked = Asked(message.model, message.adapter, message.resume.model_digest, message.resume.adapter_digest)
    return RequestMessage(packed, asked, message.priority, is_constrained(message))
