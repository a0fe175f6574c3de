"""Rate limits and quotas of tenants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.processor.admission.rate_limiter import RateLimiter
from services.processor.admission.tenant_policy import TenantPolicies
from services.ring.errors import Code, Refused


def refusal(call) -> int:
    """The time after which to come again."""
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.status.code is Code.RESOURCE_EXHAUSTED
    return caught.value.status.retry_after_ms


def test_an_unnamed_tenant_has_the_default_policy(policies: TenantPolicies) -> None:
    limiter = RateLimiter(policies)
    for request_id in ("1-1", "1-2"):
        limiter.check("x", 0.0)
        limiter.enter(request_id, "x", 0.0)
    assert refusal(lambda: limiter.check("x", 0.0)) > 0
    limiter.check("y", 0.0)
    limiter.leave("1-1")
    limiter.leave("1-1")
    limiter.check("x", 0.0)


def test_a_bucket_stays_empty_until_its_debt_is_paid(policies: TenantPolicies) -> None:
    limiter = RateLimiter(policies)
    limiter.computed("a", 59, 100.0)
    limiter.check("a", 100.0)
    limiter.computed("a", 31, 100.0)  # 90 of 60: half a minute, and a token, until something is in it
    assert refusal(lambda: limiter.check("a", 100.0)) == 31_000
    assert refusal(lambda: limiter.check("a", 129.0)) == 2_000
    limiter.check("a", 131.5)


def test_requests_per_minute_are_limited(policies: TenantPolicies) -> None:
    limiter = RateLimiter(policies)
    for request_id in ("1-1", "1-2"):
        limiter.check("often", 10.0)
        limiter.enter(request_id, "often", 10.0)
        limiter.leave(request_id)
    assert refusal(lambda: limiter.check("often", 10.0)) == 30_000
    limiter.tick(10.0)
    assert 1_000 <= refusal(lambda: limiter.check("often", 39.0)) <= 1_001
    limiter.check("often", 40.5)


def test_queued_prompt_tokens_are_limited(policies: TenantPolicies) -> None:
    limiter = RateLimiter(policies)
    for request_id in ("1-1", "1-2"):
        limiter.enter(request_id, "b c", 0.0)
    limiter.queue("1-1", "b c", 8)
    refusal(lambda: limiter.queue("1-2", "b c", 3))
    limiter.queue("1-2", "b c", 2)
    limiter.begun("1-1")
    limiter.begun("1-1")
    limiter.enter("1-3", "b c", 0.0)
    limiter.queue("1-3", "b c", 8)
    limiter.leave("1-2")
    limiter.leave("1-3")
    limiter.enter("1-4", "b c", 0.0)
    limiter.queue("1-4", "b c", 10)


def test_the_policy_file_is_not_checked_for_every_delta(
    policies: TenantPolicies, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, asked = RateLimiter(policies), []
    of = policies.of
    monkeypatch.setattr(policies, "of", lambda tenant: (asked.append(tenant), of(tenant))[1])
    for tenant in "aaba":
        limiter.computed(tenant, 60, 1.0)
    assert asked == ["a", "b"]
    limiter.tick(1.0)
    limiter.computed("a", 60, 1.0)
    assert asked == ["a", "b", "a"]
    assert refusal(lambda: limiter.check("a", 1.0)) > 60_000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.floats(0.1, 30)), max_size=20))
def test_idle_tenants_are_forgotten(steps: list[tuple[str, int, float]]) -> None:
    limiter, now = RateLimiter(TenantPolicies(None)), 0.0
    for number, (tenant, tokens, seconds) in enumerate(steps):
        now += seconds
        limiter.check(tenant, now)
        limiter.enter(str(number), tenant, now)
        limiter.queue(str(number), tenant, tokens)
        limiter.computed(tenant, tokens, now)
    for number in range(len(steps)):
        limiter.leave(str(number))
    limiter.tick(now)
    assert not limiter._usage
    assert not limiter._tenants
    assert not limiter._queued
    assert not limiter._token_rates
