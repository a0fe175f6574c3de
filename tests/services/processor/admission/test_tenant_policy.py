"""The policy file of tenants: what a table inherits, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.config.errors import FatalError
from services.processor.admission.tenant_policy import TenantPolicies


def test_a_table_inherits_from_the_default(policies: TenantPolicies) -> None:
    named = policies.of("b c")
    assert (named.max_queued_tokens, named.max_concurrent_requests) == (10, 2)
    assert (policies.permits("b c", "n"), policies.permits("b c", "o"), policies.permits("x", "o")) == (
        True,
        False,
        True,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("[tenants", "it is not TOML"),
        ("[tenant.a]", "unknown entry 'tenant'"),
        ("tenants = 1", "expected \\[tenants.NAME\\]"),
        ("[tenants.a]\nmax_tokens = 1", "unknown option tenants.a.max_tokens: expected max_concurrent_requests"),
        ("[default]\nmax_queued_tokens = -1", "default.max_queued_tokens: expected an integer"),
        ("[default]\nmax_queued_tokens = true", "default.max_queued_tokens: expected an integer"),
        ("[default]\nmodels = 'm'", "default.models: expected a list of names"),
        ("[tenants]\na = 1", "tenants.a: expected a table"),
    ],
)
def test_a_policy_file_with_mistakes_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(FatalError, match=f"^--tenants-file: .*{words}"):
        TenantPolicies(str(tmp_path / "t"))
