"""How many of the tokens that engines guess ahead come true, from the counts of an engine's load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of the drafts since an engine's start."""

    drafts: int
    """Times that a step tried guessed tokens for a choice."""
    draft_tokens: int
    """Tokens that were guessed for them."""
    share: float
    """Of these tokens, those that came true."""
    length: float
    """Mean tokens that such a step gave the choice: those that came true, and one more. 1 before any."""
    by_position: tuple[float, ...]
    """Share of the drafts whose first token came true, whose second did, and so on."""


def acceptance(drafts: int, draft_tokens: int, accepted: int, by_position: Sequence[int]) -> Acceptance | None:
    """From the fields of ``ringline.engine.v1.Load``; None for an engine that guesses nothing."""
    if not by_position:
        return None
    return Acceptance(
        drafts,
        draft_tokens,
        accepted / max(1, draft_tokens),
        1 + accepted / max(1, drafts),
        tuple(count / max(1, drafts) for count in by_position),
    )
