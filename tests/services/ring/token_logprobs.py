"""Log probabilities one by one, as tests write them, and packed, as services hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.ring.logprobs import LogprobArrays, PackedLogprobs


class TokenLogprob(NamedTuple):
    """Log probabilities at one position."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


def packed(scores: Iterable[TokenLogprob]) -> PackedLogprobs:
    """All of them; they have equally many alternatives."""
    scores = list(scores)
    return PackedLogprobs(
        len(scores[0].top_ids) if scores else 0,
        [score.logprob for score in scores],
        [score.rank for score in scores],
        [token_id for score in scores for token_id in score.top_ids],
        [logprob for score in scores for logprob in score.top_logprobs],
    )


def unpacked(arrays: LogprobArrays | None) -> list[TokenLogprob]:
    """The inverse; nothing is no score."""
    if arrays is None:
        return []
    k = arrays.top_count
    return [
        TokenLogprob(
            logprob,
            rank,
            tuple(arrays.top_ids[place * k : place * k + k]),
            tuple(arrays.top_logprobs[place * k : place * k + k]),
        )
        for place, (logprob, rank) in enumerate(zip(arrays.logprobs, arrays.ranks, strict=True))
    ]
