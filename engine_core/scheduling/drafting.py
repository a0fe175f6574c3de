"""Speculative decoding: how many of a sequence's drafts a step computes.

A draft is a token that will probably come next, such as one that a grammar forces; a step that computes it saves the
one after it. Drafts come with the results of steps. The sampling noise of a position does not depend on them. So a
draft changes how soon a token is known, but never which token it is: one that differs from the token sampled in its
place is rejected, with all drafts after it.

A draft that is accepted is worth its row in a step of any size: the token would take a row in another step. Where a
grammar forces a text, its mask leaves one token, and all drafts are accepted, whatever the model. So a sequence's
drafts are taken until one of them turns out wrong.

From then on they must earn it, because a rejected draft costs its row. On a CPU a step of 4 rows takes as long as one
of a single row, because reading the weights takes all the time; one of 8 takes 1.2 times as long, and from 16 on every
row costs as much as it would in another step. There a draft pays only if it is accepted almost for certain. So each
sequence keeps count of its drafts that came true since the last one that did not, and each draft that a step takes has
its price in them: none while the step has few rows, one while it has some more, and else four. Drafts that were not
computed count too, when the token in their place is known: trust is earned and lost without any row. In a large step a
sequence then wastes at most a quarter as many rows as drafts of it came true.
"""

from __future__ import annotations

from engine_core.sequence import Sequence

FREE_ROWS = 4
"""Rows of a step up to which a draft costs nothing."""
CHEAP_ROWS = 8
"""Rows of a step up to which a draft costs little."""
CHEAP_PRICE = 1
FULL_PRICE = 4
"""Drafts that must have come true, without one that did not, for each draft that a step takes."""


def num_worthwhile(came_true: int | None, num_drafts: int, rows: int) -> int:
    """How many of ``num_drafts`` drafts (none if negative) a step that has ``rows`` rows without them takes.

    ``came_true``: how many of the sequence's last drafts came true; None if none was wrong so far.
    """
    if came_true is None:
        return max(0, num_drafts)
    for count in range(1, num_drafts + 1):
        total = rows + count
        price = 0 if total <= FREE_ROWS else CHEAP_PRICE if total <= CHEAP_ROWS else FULL_PRICE
        if came_true < price * count:
            return count - 1
    return max(0, num_drafts)


def take_in(seq: Sequence, token_ids: list[int], draft_token_ids: list[int] | None) -> None:
    """A step sampled ``token_ids`` for ``seq``, and brought ``draft_token_ids`` to follow them; None: nothing new."""
    judged = min(len(seq.drafts), len(token_ids))
    if seq.drafts[:judged] == token_ids[:judged]:
        seq.drafts = seq.drafts[judged:]
        if seq.drafts_come_true is not None:
            seq.drafts_come_true += judged
    else:
        seq.drafts = []
        seq.drafts_come_true = 0
    if draft_token_ids is not None:
        seq.drafts = draft_token_ids
