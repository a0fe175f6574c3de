"""The principal of a call: its tenant, and whether the token that authenticated it is still valid."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from services.ring.errors import invalid_field

MAX_TENANT_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Principal:
    """The client of a stream."""

    tenant: str
    is_valid: Callable[[], bool] | None = None
    """Whether the client's token would be accepted now; None if no token is required."""


authenticated: ContextVar[Principal | None] = ContextVar("authenticated", default=None)
"""The principal of the RPC handled in this context; None without authentication."""


def tenant_of(metadata: Iterable[tuple[str, str | bytes]], header: str) -> str:
    """The value of ``header``; ``""`` if absent: all calls without it are one tenant.

    Raises ``Refused`` for several values or one that is too long: with either, one tenant could pass for another.
    """
    values = [value for key, value in metadata if key == header]
    if len(values) > 1:
        raise invalid_field(header, f"{len(values)} values: expected one at most")
    tenant = values[0] if values else ""
    if not isinstance(tenant, str) or len(tenant) > MAX_TENANT_LENGTH:
        raise invalid_field(header, f"{len(tenant)} characters: expected a name of at most {MAX_TENANT_LENGTH}")
    return tenant
