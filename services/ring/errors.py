"""Errors as data: canonical codes, reasons for programs, and when to retry."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

_LEAST_MS, _MOST_MS = 100, 30_000
UNKNOWN_MS = 1000
"""The delay when the wait cannot be estimated."""
_JITTER = 1.25


def retry_after_ms(seconds: float | None) -> int:
    """Milliseconds after which to try again, given ``seconds`` until the queue has drained.

    About half of that time, bounded, and with jitter, so that retries do not arrive together.
    """
    delay = UNKNOWN_MS if seconds is None else min(max(500 * seconds, _LEAST_MS), _MOST_MS)
    return round(delay * random.uniform(1.0, _JITTER))


class Code(enum.IntEnum):
    """The canonical status codes that the ring uses, with gRPC's numbers."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Reason(enum.IntEnum):
    """The machine-readable reason of an error, with the numbers of ``ringline.types.v1.ErrorReason``."""

    INVALID_FIELD = 1
    TOO_LARGE = 2
    CAPABILITY_MISSING = 3
    VERSION_MISMATCH = 4
    MODEL_NOT_FOUND = 5
    MODEL_GONE = 6
    UNAUTHENTICATED = 7
    PERMISSION_DENIED = 8
    RATE_LIMIT = 9
    QUOTA = 10
    OVERLOAD = 11
    STALLED = 12
    DRAINING = 13
    NOT_READY = 14
    NO_ROUTE = 15
    UNKNOWN_PEER = 16
    STALE_EPOCH = 17
    UNKNOWN_REQUEST = 18
    SUPERSEDED = 19
    CANCELLED = 20
    DEADLINE = 21
    POISON = 22
    INTERNAL = 23
    UNSUPPORTED = 24
    MEDIA_MISSING = 25
    ADAPTER_NOT_FOUND = 26
    ADAPTER_GONE = 27
    ADAPTER_EXISTS = 28


USUAL_REASONS = {
    Code.CANCELLED: Reason.CANCELLED,
    Code.UNKNOWN: Reason.INTERNAL,
    Code.INVALID_ARGUMENT: Reason.INVALID_FIELD,
    Code.DEADLINE_EXCEEDED: Reason.DEADLINE,
    Code.NOT_FOUND: Reason.UNKNOWN_REQUEST,
    Code.ALREADY_EXISTS: Reason.STALE_EPOCH,
    Code.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    Code.RESOURCE_EXHAUSTED: Reason.OVERLOAD,
    Code.FAILED_PRECONDITION: Reason.UNSUPPORTED,
    Code.ABORTED: Reason.SUPERSEDED,
    Code.UNIMPLEMENTED: Reason.UNSUPPORTED,
    Code.INTERNAL: Reason.INTERNAL,
    Code.UNAVAILABLE: Reason.NOT_READY,
    Code.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
}
"""The reason of an error that gives only a code."""


@dataclass(frozen=True, slots=True)
class Status:
    """A canonical error."""

    code: Code
    message: str
    """Human-readable text; begins with ``field`` and a colon if the error concerns a field."""
    retry_after_ms: int | None = None
    """Sent as RetryInfo with RESOURCE_EXHAUSTED and UNAVAILABLE."""
    given_reason: Reason | None = None
    """None: the usual reason of the code."""
    field: str | None = None
    """The invalid field, sent as BadRequest."""

    @property
    def reason(self) -> Reason:
        return self.given_reason or USUAL_REASONS[self.code]


class Refused(Exception):
    """A command or stream is refused; its sender receives ``status``."""

    def __init__(
        self,
        code: Code,
        message: str,
        retry_after_ms: int | None = None,
        *,
        reason: Reason | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = Status(code, message, retry_after_ms, reason, field)


def invalid_field(field: str, problem: str, *, reason: Reason | None = None) -> Refused:
    """INVALID_ARGUMENT, naming the field."""
    return Refused(Code.INVALID_ARGUMENT, f"{field}: {problem}", reason=reason, field=field)
