"""What a tenant may have, counted; and files that say what nobody means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.config.errors import FatalError
from services.processor.admission.rate_limiter import RateLimiter
from services.processor.admission.tenant_policy import TenantPolicies
from services.ring.errors import Code, Refused

POLICIES = """\
[default]
max_concurrent_requests = 2

[tenants.a]
max_tokens_per_minute = 60
max_concurrent_requests = 100

[tenants.often]
max_requests_per_minute = 2

[tenants."b c"]
max_queued_tokens = 10
models = ["m", "n"]
"""


@pytest.fixture
def policies(tmp_path: Path) -> TenantPolicies:
    (tmp_path / "tenants.toml").write_text(POLICIES)
    return TenantPolicies(str(tmp_path / "tenants.toml"))


def refusal(call) -> int:
    """The time after which to come again."""
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.status.code is Code.RESOURCE_EXHAUSTED
    return caught.value.status.retry_after_ms


def test_a_tenant_that_is_not_named_has_the_default(policies: TenantPolicies) -> None:
    meter = RateLimiter(policies)
    for ring_id in ("1-1", "1-2"):
        meter.check("x", 0.0)
        meter.enter(ring_id, "x", 0.0)
    assert refusal(lambda: meter.check("x", 0.0)) > 0
    meter.check("y", 0.0)
    meter.leave("1-1")
    meter.leave("1-1")
    meter.check("x", 0.0)


def test_what_a_table_leaves_out_is_the_defaults(policies: TenantPolicies) -> None:
    named = policies.of("b c")
    assert (named.max_queued_tokens, named.max_concurrent_requests) == (10, 2)
    assert (policies.permits("b c", "n"), policies.permits("b c", "o"), policies.permits("x", "o")) == (
        True,
        False,
        True,
    )


def test_a_bucket_is_empty_until_what_was_computed_is_paid_for(policies: TenantPolicies) -> None:
    meter = RateLimiter(policies)
    meter.computed("a", 59, 100.0)
    meter.check("a", 100.0)
    meter.computed("a", 31, 100.0)  # 90 of 60: half a minute, and a token, until something is in it
    assert refusal(lambda: meter.check("a", 100.0)) == 31_000
    assert refusal(lambda: meter.check("a", 129.0)) == 2_000
    meter.check("a", 131.5)


def test_a_tenant_begins_so_many_requests_a_minute(policies: TenantPolicies) -> None:
    meter = RateLimiter(policies)
    for ring_id in ("1-1", "1-2"):
        meter.check("often", 10.0)
        meter.enter(ring_id, "often", 10.0)
        meter.leave(ring_id)
    assert refusal(lambda: meter.check("often", 10.0)) == 30_000
    meter.tick(10.0)
    assert 1_000 <= refusal(lambda: meter.check("often", 39.0)) <= 1_001
    meter.check("often", 40.5)


def test_prompts_wait_within_a_size(policies: TenantPolicies) -> None:
    meter = RateLimiter(policies)
    for ring_id in ("1-1", "1-2"):
        meter.enter(ring_id, "b c", 0.0)
    meter.queue("1-1", "b c", 8)
    refusal(lambda: meter.queue("1-2", "b c", 3))
    meter.queue("1-2", "b c", 2)
    meter.begun("1-1")
    meter.begun("1-1")
    meter.enter("1-3", "b c", 0.0)
    meter.queue("1-3", "b c", 8)
    meter.leave("1-2")
    meter.leave("1-3")
    meter.enter("1-4", "b c", 0.0)
    meter.queue("1-4", "b c", 10)


def test_the_file_is_not_looked_at_for_every_delta(policies: TenantPolicies, monkeypatch: pytest.MonkeyPatch) -> None:
    meter, asked = RateLimiter(policies), []
    of = policies.of
    monkeypatch.setattr(policies, "of", lambda tenant: (asked.append(tenant), of(tenant))[1])
    for tenant in "aaba":
        meter.computed(tenant, 60, 1.0)
    assert asked == ["a", "b"]
    meter.tick(1.0)
    meter.computed("a", 60, 1.0)
    assert asked == ["a", "b", "a"]
    assert refusal(lambda: meter.check("a", 1.0)) > 60_000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.floats(0.1, 30)), max_size=20))
def test_nobody_is_remembered_who_has_nothing(steps: list[tuple[str, int, float]]) -> None:
    meter, now = RateLimiter(TenantPolicies(None)), 0.0
    for number, (tenant, tokens, seconds) in enumerate(steps):
        now += seconds
        meter.check(tenant, now)
        meter.enter(str(number), tenant, now)
        meter.queue(str(number), tenant, tokens)
        meter.computed(tenant, tokens, now)
    for number in range(len(steps)):
        meter.leave(str(number))
    meter.tick(now)
    assert not meter._accounts
    assert not meter._tenants
    assert not meter._queued
    assert not meter._token_rates


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("[tenants", "it is not TOML"),
        ("[tenant.a]", "'tenant' means nothing"),
        ("tenants = 1", "expected \\[tenants.NAME\\]"),
        ("[tenants.a]\nmax_tokens = 1", "tenants.a.max_tokens means nothing: expected max_concurrent_requests"),
        ("[default]\nmax_queued_tokens = -1", "default.max_queued_tokens: expected an integer"),
        ("[default]\nmax_queued_tokens = true", "default.max_queued_tokens: expected an integer"),
        ("[default]\nmodels = 'm'", "default.models: expected a list of names"),
        ("[tenants]\na = 1", "tenants.a: expected a table"),
    ],
)
def test_a_file_that_says_what_nobody_means_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(FatalError, match=f"^--tenants-file: .*{words}"):
        TenantPolicies(str(tmp_path / "t"))
