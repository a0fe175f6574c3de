"""Where drafts come from: tokens that may come next, computed together with the token before them.

Every position is sampled with noise of its own, so a draft changes how soon a token is known, but never which token it
is: a draft that differs from what the model samples in its place is dropped, with all after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Drafter(Protocol):
    """Proposes drafts for sequences that decode. Used from the scheduler's thread, so it must be quick."""

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Up to ``max_tokens`` ids of the vocabulary that may follow ``token_ids`` (prompt and output), or none."""
