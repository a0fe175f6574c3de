"""Policies of some tenants."""

from pathlib import Path

import pytest

from services.processor.admission.tenant_policy import TenantPolicies

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
