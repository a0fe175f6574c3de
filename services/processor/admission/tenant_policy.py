"""Tenants' policies, from a file: permitted models and limits."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from services.common.security.file_reload import ReloadedFile, UnusableFile
from services.processor.principal import MAX_TENANT_LENGTH
from services.ring.errors import Code, Refused

FLAG = "--tenants-file"


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """A tenant's models and limits; None: no limit."""

    models: frozenset[str] | None = None
    """Names of models; of adapters, alone or as ``model:adapter``; ``model:*`` for all adapters of a model."""
    max_concurrent_requests: int | None = None
    max_queued_tokens: int | None = None
    """Limit on the prompt tokens of requests that no engine has begun to compute."""
    max_requests_per_minute: int | None = None
    max_tokens_per_minute: int | None = None
    """Limit on prompt and output tokens together."""
    adapter_control: bool = False
    """Whether it may load and unload adapters, where clients may."""

    def permits(self, model: str) -> bool:
        """Whether the tenant may use a model by itself."""
        return self.models is None or model in self.models

    def permits_adapter(self, model: str, adapter: str) -> bool:
        """Whether the tenant may use a model with an adapter."""
        return self.models is None or not self.models.isdisjoint((adapter, f"{model}:{adapter}", f"{model}:*"))


class TenantPolicies:
    """The policies in the file, which is reloaded when it changes."""

    def __init__(self, path: str | None) -> None:
        """Without a file no tenant has limits. Raises ``FatalError`` for an unusable file."""
        self._file = None if path is None else ReloadedFile({FLAG: path}, _parse)

    def of(self, tenant: str) -> TenantPolicy:
        """The tenant's policy, or the default."""
        if self._file is None:
            return _UNLIMITED
        policies = self._file.value
        return policies.get(tenant, policies[None])

    def check_model(self, tenant: str, model: str) -> None:
        """Raise ``Refused`` unless a tenant may use a model; the error does not name the model."""
        if not self.permits(tenant, model):
            raise forbidden_model()

    def permits(self, tenant: str, model: str) -> bool:
        """Whether a tenant may use a model."""
        return self.of(tenant).permits(model)

    def may_control_adapters(self, tenant: str) -> bool:
        """Whether a tenant may load and unload adapters; without a file, all may."""
        return self._file is None or self.of(tenant).adapter_control


def forbidden_model() -> Refused:
    """The error of a model that a tenant may not use; it does not name the model."""
    message = "model: this tenant may not use the served model; ask the operator for access"
    return Refused(Code.PERMISSION_DENIED, message)


_UNLIMITED = TenantPolicy()
_KNOWN = frozenset(field.name for field in fields(TenantPolicy))


def _parse(contents: Mapping[str, bytes]) -> Mapping[str | None, TenantPolicy]:
    """Policies keyed by tenant; the default policy has the key None."""
    try:
        document = tomllib.loads(contents[FLAG].decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnusableFile(FLAG, f"it is not TOML: {error}") from None
    if unknown := document.keys() - {"default", "tenants"}:
        raise UnusableFile(FLAG, f"unknown entry {min(unknown)!r}: expected [default] and [tenants.NAME]")
    default = _policy("default", document.get("default", {}), _UNLIMITED)
    tenants = document.get("tenants", {})
    if not isinstance(tenants, dict):
        raise UnusableFile(FLAG, "tenants: expected [tenants.NAME]")
    policies: dict[str | None, TenantPolicy] = {None: default}
    for name, values in tenants.items():
        if len(name) > MAX_TENANT_LENGTH:
            raise UnusableFile(FLAG, f"a tenant's name has more than {MAX_TENANT_LENGTH} characters")
        policies[name] = _policy(f"tenants.{name}", values, default)
    return policies


def _policy(place: str, values: Any, default: TenantPolicy) -> TenantPolicy:
    """A policy from a table's values, else from ``default``."""
    if not isinstance(values, dict):
        raise UnusableFile(FLAG, f"{place}: expected a table")
    if unknown := values.keys() - _KNOWN:
        raise UnusableFile(FLAG, f"unknown option {place}.{min(unknown)}: expected {', '.join(sorted(_KNOWN))}")
    changes = dict(values)
    for name, value in values.items():
        if name == "models":
            if not isinstance(value, list) or not all(isinstance(model, str) for model in value):
                raise UnusableFile(FLAG, f"{place}.models: expected a list of names")
            changes[name] = frozenset(value)
        elif name == "adapter_control":
            if not isinstance(value, bool):
                raise UnusableFile(FLAG, f"{place}.{name}: expected true or false")
        elif type(value) is not int or value < 0:
            raise UnusableFile(FLAG, f"{place}.{name}: expected an integer, at least 0")
    return replace(default, **changes)
