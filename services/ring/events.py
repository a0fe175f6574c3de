"""What travels round the ring, as data."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Cause(enum.IntEnum):
    """Why a choice ended; the numbers of ``ringline.types.v1.FinishCause``."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    DEADLINE = 4
    ERROR = 5


class Code(enum.IntEnum):
    """The canonical status codes that the ring uses; the numbers of gRPC."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class Status:
    """A canonical error."""

    code: Code
    message: str
    retry_after_ms: int | None = None
    """Sent as RetryInfo with RESOURCE_EXHAUSTED and UNAVAILABLE."""


class Refused(Exception):
    """A command that is not carried out; the text and code reach whoever sent it."""

    def __init__(self, code: Code, message: str, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.status = Status(code, message, retry_after_ms)


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of one choice."""

    cause: Cause
    position: int
    """Output tokens the choice has."""
    stop_token_id: int | None = None
    stop_string: str | None = None
    error: Status | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """How far a prompt is, tokens."""

    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int
