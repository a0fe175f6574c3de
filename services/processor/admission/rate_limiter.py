"""Rate limits and concurrency limits per tenant. Each processor applies them separately.

Requests and tokens per minute are limited by token buckets that hold one minute's amount. Tokens are charged once their
number is known; a tenant with an empty bucket begins no request until one unit has refilled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from services.processor.admission.tenant_policy import TenantPolicies
from services.ring.errors import Code, Reason, Refused

RETRY_AFTER_MS = 1000
"""Retry delay at the limits on concurrent requests and queued tokens: when a request ends or begins is unknown."""


@dataclass(slots=True)
class _TokenBucket:
    """A token bucket that stores how many units are missing. Its capacity is one minute's refill."""

    missing_then: float = 0.0
    updated_at: float = 0.0
    per_second: float = 0.0

    def missing(self, now: float) -> float:
        """Units missing until the bucket is full."""
        if not self.missing_then:
            return 0.0
        return max(0.0, self.missing_then - (now - self.updated_at) * self.per_second)

    def take(self, amount: int, per_minute: int, now: float) -> None:
        """Take units; the bucket may go below empty."""
        self.per_second = per_minute / 60
        self.missing_then, self.updated_at = self.missing(now) + amount, now

    def check(self, what: str, per_minute: int | None, now: float) -> None:
        """Raise ``Refused`` while the bucket holds less than one unit. ``per_minute`` None: no limit."""
        if per_minute is None:
            return
        self.per_second = per_minute / 60
        missing = self.missing(now)
        if missing > per_minute - 1:
            seconds = (missing - per_minute + 1) * 60 / per_minute if per_minute else 60.0
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"rate limit of {per_minute} {what} per minute reached; retry in {seconds:.1f} s",
                math.ceil(1000 * seconds),
                reason=Reason.RATE_LIMIT,
            )


@dataclass(slots=True)
class _Usage:
    live_requests: int = 0
    queued_tokens: int = 0
    requests: _TokenBucket = field(default_factory=_TokenBucket)
    tokens: _TokenBucket = field(default_factory=_TokenBucket)

    def idle(self, now: float) -> bool:
        """Whether the tenant has no live requests and full buckets, so that its record can be dropped."""
        return not (self.live_requests or self.requests.missing(now) or self.tokens.missing(now))


class RateLimiter:
    """Tracks usage per tenant. Times are seconds on the monotonic clock."""

    def __init__(self, policies: TenantPolicies) -> None:
        self._policies = policies
        self._usage: dict[str, _Usage] = {}
        self._tenants: dict[str, str] = {}
        """Tenants of the live requests, keyed by request id."""
        self._queued: dict[str, tuple[str, int]] = {}
        """Tenant and prompt tokens of requests that no engine has begun, keyed by request id."""
        self._token_rates: dict[str, int | None] = {}
        """Tokens per minute, keyed by tenant; cached until the next tick to avoid checking the file for every delta."""

    def check(self, tenant: str, now: float) -> None:
        """Raise ``Refused`` if a tenant may not begin one more request."""
        policy = self._policies.of(tenant)
        usage = self._usage.get(tenant, _Usage())
        most = policy.max_concurrent_requests
        if most is not None and usage.live_requests >= most:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"limit of {most} concurrent requests reached; retry when one of this tenant's has ended",
                RETRY_AFTER_MS,
                reason=Reason.QUOTA,
            )
        usage.requests.check("requests", policy.max_requests_per_minute, now)
        usage.tokens.check("tokens", policy.max_tokens_per_minute, now)

    def enter(self, request_id: str, tenant: str, now: float) -> None:
        self._tenants[request_id] = tenant
        usage, rate = self._usage_of(tenant), self._policies.of(tenant).max_requests_per_minute
        usage.live_requests += 1
        if rate is not None:
            usage.requests.take(1, rate, now)

    def queue(self, request_id: str, tenant: str, tokens: int) -> None:
        """A prompt of ``tokens`` waits for an engine; raises ``Refused`` if the tenant's limit would be exceeded."""
        usage = self._usage_of(tenant)
        most = self._policies.of(tenant).max_queued_tokens
        if most is not None and usage.queued_tokens + tokens > most:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"limit of {most} queued prompt tokens exceeded: this tenant's waiting prompts have "
                f"{usage.queued_tokens}, and this one has {tokens}; retry later or shorten the prompt",
                RETRY_AFTER_MS,
                reason=Reason.QUOTA,
            )
        usage.queued_tokens += tokens
        self._queued[request_id] = (tenant, tokens)

    def begun(self, request_id: str) -> None:
        """An engine computes a request. Idempotent."""
        if (queued := self._queued.pop(request_id, None)) is not None:
            tenant, tokens = queued
            self._usage_of(tenant).queued_tokens -= tokens

    def computed(self, tenant: str, tokens: int, now: float) -> None:
        """Charge tokens of prompts and outputs."""
        if tenant not in self._token_rates:
            self._token_rates[tenant] = self._policies.of(tenant).max_tokens_per_minute
        rate = self._token_rates[tenant]
        if rate is not None:
            self._usage_of(tenant).tokens.take(tokens, rate, now)

    def leave(self, request_id: str) -> None:
        """A request has ended. Idempotent."""
        self.begun(request_id)
        if (tenant := self._tenants.pop(request_id, None)) is not None:
            self._usage_of(tenant).live_requests -= 1

    def tick(self, now: float) -> None:
        """Forget idle tenants. Call a few times a second."""
        self._token_rates.clear()
        for tenant in [tenant for tenant, usage in self._usage.items() if usage.idle(now)]:
            del self._usage[tenant]

    def _usage_of(self, tenant: str) -> _Usage:
        return self._usage.setdefault(tenant, _Usage())
