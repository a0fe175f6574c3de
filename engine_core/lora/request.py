"""Which adapter a request is for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestAdapter:
    """A loaded adapter, as a request names it."""

    adapter_id: int
    """Unique for the executor's life; an adapter that is loaded again has another."""
    digest: str
    """Of its contents, whatever its name: equal digests add the same to the model."""
