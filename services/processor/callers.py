"""Who asks: a tenant, and whether what proved it still holds."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

MAX_TENANT_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """Who began a stream."""

    tenant: str
    still_known: Callable[[], bool] | None = None
    """Whether the token that was shown would let the caller in now; None where none was asked for."""


authenticated: ContextVar[Caller | None] = ContextVar("authenticated", default=None)
"""Of the RPC that is handled in this context, if its caller has proved who it is."""
