"""Speculative decoding: the interface for drafters. A draft is a proposed next token, computed in the same step.

The sampling noise of a position does not depend on drafts. So a draft changes how soon a token is known, but never
which token it is: a draft that differs from the token sampled in its place is rejected, with all drafts after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Proposes drafts for decoding sequences. Called in the scheduler's thread, so it must be quick."""

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Up to ``max_tokens`` ids (possibly none) that may follow ``token_ids``, the prompt and output so far."""
