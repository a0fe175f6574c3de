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
        (
            "[tenants.a]\nmax_tokens = 1",
            "unknown option tenants.a.max_tokens: expected adapter_control, max_concurrent",
        ),
        ("[default]\nadapter_control = 1", "default.adapter_control: expected true or false"),
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


def test_an_adapter_is_permitted_by_one_of_its_names_or_with_all_of_its_model(tmp_path: Path) -> None:
    tenants = {"none": '["m"]', "name": '["a"]', "both": '["m:a"]', "all": '["m:*"]', "every": None}
    text = "".join(
        f"[tenants.{name}]\n{'' if models is None else f'models = {models}'}\n" for name, models in tenants.items()
    )
    (tmp_path / "t").write_text(text)
    policies = TenantPolicies(str(tmp_path / "t"))
    pairs = [("m", "a"), ("m", "b"), ("n", "a")]
    permitted = {name: [pair for pair in pairs if policies.of(name).permits_adapter(*pair)] for name in tenants}
    assert permitted == {
        "none": [],
        "name": [("m", "a"), ("n", "a")],
        "both": [("m", "a")],
        "all": [("m", "a"), ("m", "b")],
        "every": pairs,
    }
    assert [name for name in tenants if policies.permits(name, "m")] == ["none", "every"]


def test_adapters_are_changed_by_all_without_a_file_and_else_by_those_whom_it_names(tmp_path: Path) -> None:
    assert TenantPolicies(None).may_control_adapters("anyone")
    (tmp_path / "t").write_text("[tenants.operator]\nadapter_control = true\n")
    policies = TenantPolicies(str(tmp_path / "t"))
    assert policies.may_control_adapters("operator")
    assert not policies.may_control_adapters("anyone")
