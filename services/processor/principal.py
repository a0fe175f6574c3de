"""The principal of a call: a tenant, and whether what proved it still holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass

from services.ring.errors import invalid_field

MAX_TENANT_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Principal:
    """Who began a stream."""

    tenant: str
    still_known: Callable[[], bool] | None = None
    """Whether the token that was shown would let the caller in now; None where none was asked for."""


authenticated: ContextVar[Principal | None] = ContextVar("authenticated", default=None)
"""Of the RPC that is handled in this context, if its caller has proved who it is."""


def tenant_of(metadata: Iterable[tuple[str, str | bytes]], header: str) -> str:
    """The value of ``header``, or ``""``: those who do not say are one tenant.

    Raises ``Refused`` for what would let one tenant pass for another: a name that is cut, or one of several.
    """
    values = [value for key, value in metadata if key == header]
    if len(values) > 1:
        raise invalid_field(header, f"{len(values)} values: expected one at most")
    tenant = values[0] if values else ""
    if not isinstance(tenant, str) or len(tenant) > MAX_TENANT_LENGTH:
        raise invalid_field(header, f"{len(tenant)} characters: expected a name of at most {MAX_TENANT_LENGTH}")
    return tenant
