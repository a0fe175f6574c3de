"""How much each tenant has under way and has had lately, against what it may have. Of this processor alone.

Requests and tokens per minute are buckets that fill steadily and hold a minute's worth. Tokens are taken out
afterwards, when it is known how many they are; a tenant with an empty bucket begins nothing until there is something in
it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from services.processor.admission.tenant_policy import TenantPolicies
from services.ring.errors import Code, Reason, Refused

RETRY_AFTER_MS = 1000
"""Where nobody knows when a request will end."""


@dataclass(slots=True)
class _Bucket:
    """What is missing in it, and how fast that comes back."""

    spent: float = 0.0
    at: float = 0.0
    """When that was missing."""
    per_second: float = 0.0

    def missing(self, now: float) -> float:
        """What is missing now."""
        return max(0.0, self.spent - (now - self.at) * self.per_second) if self.spent else 0.0

    def take(self, amount: int, per_minute: int, now: float) -> None:
        """Take something out, whether it is there or not."""
        self.per_second = per_minute / 60
        self.spent, self.at = self.missing(now) + amount, now

    def check(self, what: str, per_minute: int | None, now: float) -> None:
        """Raise ``Refused`` while not even one is in it; it holds as much as comes back in a minute."""
        if per_minute is None:
            return
        self.per_second = per_minute / 60
        missing = self.missing(now)
        if missing > per_minute - 1:
            seconds = (missing - per_minute + 1) * 60 / per_minute if per_minute else 60.0
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"this tenant has had its {per_minute} {what} of a minute: expected to come again in {seconds:.1f} s",
                math.ceil(1000 * seconds),
                reason=Reason.RATE_LIMIT,
            )


@dataclass(slots=True)
class _Account:
    """One tenant's, while it has something under way or a bucket is not full."""

    requests: int = 0
    queued_tokens: int = 0
    asked: _Bucket = field(default_factory=_Bucket)
    """Requests, of a minute."""
    computed: _Bucket = field(default_factory=_Bucket)
    """Tokens, of a minute."""

    def idle(self, now: float) -> bool:
        """Whether there is nothing to remember."""
        return not (self.requests or self.asked.missing(now) or self.computed.missing(now))


class RateLimiter:
    """Counts by tenant. Every time is on the monotonic clock, in seconds."""

    def __init__(self, policies: TenantPolicies) -> None:
        self.policies = policies
        self._accounts: dict[str, _Account] = {}
        self._tenants: dict[str, str] = {}
        """By ring id, of requests that are under way."""
        self._queued: dict[str, tuple[str, int]] = {}
        """Tenants and tokens by ring id, of requests that no engine has begun."""
        self._token_rates: dict[str, int | None] = {}
        """Tokens per minute by tenant, until the next tick: the file is not looked at for every delta."""

    def check(self, tenant: str, now: float) -> None:
        """Raise ``Refused`` where a tenant may not begin one request more."""
        policy = self.policies.of(tenant)
        account = self._accounts.get(tenant, _Account())
        most = policy.max_concurrent_requests
        if most is not None and account.requests >= most:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"this tenant has {account.requests} requests under way: expected at most {most}",
                RETRY_AFTER_MS,
                reason=Reason.QUOTA,
            )
        account.asked.check("requests", policy.max_requests_per_minute, now)
        account.computed.check("tokens", policy.max_tokens_per_minute, now)

    def enter(self, ring_id: str, tenant: str, now: float) -> None:
        """A request was taken."""
        self._tenants[ring_id] = tenant
        account, rate = self._account(tenant), self.policies.of(tenant).max_requests_per_minute
        account.requests += 1
        if rate is not None:
            account.asked.take(1, rate, now)

    def queue(self, ring_id: str, tenant: str, tokens: int) -> None:
        """Its prompt has so many tokens, and waits for an engine; raises ``Refused`` where that is too much."""
        account = self._account(tenant)
        most = self.policies.of(tenant).max_queued_tokens
        if most is not None and account.queued_tokens + tokens > most:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"{account.queued_tokens} tokens of this tenant's prompts wait for an engine, this one has {tokens}: "
                f"expected at most {most} together",
                RETRY_AFTER_MS,
                reason=Reason.QUOTA,
            )
        account.queued_tokens += tokens
        self._queued[ring_id] = (tenant, tokens)

    def begun(self, ring_id: str) -> None:
        """An engine computes it. Idempotent."""
        if (queued := self._queued.pop(ring_id, None)) is not None:
            tenant, tokens = queued
            self._account(tenant).queued_tokens -= tokens

    def computed(self, tenant: str, tokens: int, now: float) -> None:
        """So many tokens, of prompts and outputs, came from engines."""
        if tenant not in self._token_rates:
            self._token_rates[tenant] = self.policies.of(tenant).max_tokens_per_minute
        rate = self._token_rates[tenant]
        if rate is not None:
            self._account(tenant).computed.take(tokens, rate, now)

    def leave(self, ring_id: str) -> None:
        """It has ended. Idempotent."""
        self.begun(ring_id)
        if (tenant := self._tenants.pop(ring_id, None)) is not None:
            self._account(tenant).requests -= 1

    def tick(self, now: float) -> None:
        """Forget who has nothing under way and a full bucket. Call now and then."""
        self._token_rates.clear()
        for tenant in [tenant for tenant, account in self._accounts.items() if account.idle(now)]:
            del self._accounts[tenant]

    def _account(self, tenant: str) -> _Account:
        return self._accounts.setdefault(tenant, _Account())
