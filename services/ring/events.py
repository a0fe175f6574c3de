"""Output events of a request: prompt progress, deltas by position, and the ends of choices."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.ring.errors import Status

NO_DRAFTS = 0, 0


class FinishReason(enum.IntEnum):
    """Why a choice ended, with the numbers of ``ringline.types.v1.FinishReason``."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    DEADLINE = 4
    ERROR = 5


@dataclass(frozen=True, slots=True)
class TypedParts:
    """Typed parts that a delta, or the end of a choice, adds to its choice. The ring carries them unread."""

    pieces: Sequence[Any] = ()
    wire_bytes: int = 0
    """Upper estimate of the size of ``pieces`` on the wire."""
    reasoning_tokens: int = 0
    """Reasoning tokens of the choice so far."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """The result of an input that is pooled. The ring carries it unread."""

    values: bytes
    """Little-endian float32, row by row."""
    rows: int


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of one choice."""

    finish_reason: FinishReason
    position: int
    """The choice's number of output tokens."""
    stop_token_id: int | None = None
    stop_string: str | None = None
    error: Status | None = None
    parts: TypedParts | None = None
    """The last typed parts; None if the answer is not divided into parts."""
    drafts: tuple[int, int] = NO_DRAFTS
    """Tokens that the engine had guessed ahead, those accepted and those rejected."""
    beam_score: float | None = None
    """None unless beams were searched."""
    pooled: Pooled | None = None
    """The input's result; None if tokens are generated, or none was computed."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Progress of a prompt, in tokens."""

    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int


class Fit(enum.Enum):
    """Where a delta of one choice begins, relative to the number of tokens its receiver has."""

    NEXT = "next"
    """It begins exactly at the count."""
    OLD = "old"
    """All of it was received before; it is dropped."""
    OVERLAP = "overlap"
    """It begins below the count and ends above it; ids can be clipped, text cannot."""
    GAP = "gap"
    """It begins above the count: something was lost."""


def fit(first_position: int, length: int, count: int) -> Fit:
    """Compare a delta of ``length`` tokens from ``first_position`` with the ``count`` tokens received before."""
    if first_position == count:
        return Fit.NEXT
    if first_position > count:
        return Fit.GAP
    return Fit.OLD if first_position + length <= count else Fit.OVERLAP
