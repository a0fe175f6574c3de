"""Speculative decoding: how many of a sequence's drafts a step computes.

A draft is a token that will probably come next, such as one that a grammar forces; a step that computes it saves the
next step. Drafts come with the results of steps. A position's sampling noise does not depend on them, so a draft
changes how soon a token is known, but never which token it is: a draft that differs from the token sampled in its place
is rejected, with all drafts after it.

An accepted draft is worth its row in a step of any size: the token would take a row in another step. Where a grammar
forces a text, its mask leaves one token, and all drafts are accepted, whatever the model. So a sequence's drafts are
taken until one turns out wrong.

From then on drafts must earn their rows, because a rejected draft costs its row. On a CPU a step of 4 rows takes as
long as a step of one, because reading the weights takes all the time; 8 rows take 1.2 times as long, and from 16 on
every row costs as much as in another step. There a draft pays only if it is almost certain to be accepted. So each
sequence counts its drafts that came true since the last wrong one, and each draft that a step takes costs some of this
count: none while the step has few rows, one while it has some more, else four. Drafts that were not computed count too,
once the token in their place is known: trust is earned and lost without any row. In a large step a sequence then wastes
at most one row for four drafts that came true.
"""

from __future__ import annotations

from engine_core.sequence import Sequence

FREE_ROWS = 4
"""Rows of a step up to which a draft costs nothing."""
CHEAP_ROWS = 8
"""Rows of a step up to which a draft costs little."""
CHEAP_PRICE = 1
FULL_PRICE = 4
"""Drafts that must have come true in a row for each draft that a step takes."""


def num_worthwhile(came_true: int | None, num_drafts: int, rows: int) -> int:
    """How many of ``num_drafts`` drafts (none if negative) a step takes that has ``rows`` rows without them.

    ``came_true``: drafts of the sequence that came true since the last wrong one; None if none was wrong so far.
    """
    if came_true is None:
        return max(0, num_drafts)
    for count in range(1, num_drafts + 1):
        total = rows + count
        price = 0 if total <= FREE_ROWS else CHEAP_PRICE if total <= CHEAP_ROWS else FULL_PRICE
        if came_true < price * count:
            return count - 1
    return max(0, num_drafts)


def judge(seq: Sequence, token_ids: list[int]) -> None:
    """Compare the drafts of ``seq`` with the ``token_ids`` that came."""
    judged = min(len(seq.drafts), len(token_ids))
    if seq.drafts[:judged] == token_ids[:judged]:
        seq.drafts = seq.drafts[judged:]
        if seq.drafts_come_true is not None:
            seq.drafts_come_true += judged
    else:
        seq.drafts = []
        seq.drafts_come_true = 0
