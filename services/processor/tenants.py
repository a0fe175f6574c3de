"""Who asks, as the metadata of a call says."""

from __future__ import annotations

from collections.abc import Iterable

from services.processor.callers import MAX_TENANT_LENGTH
from services.ring.events import invalid_field


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
