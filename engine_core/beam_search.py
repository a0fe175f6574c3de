"""Beam search over outputs: which of them grow, which have ended, and when the search is over; tokens and scores alone.

Scores, ends and the order of equals are those of transformers' ``generate`` (``num_beams``, ``do_sample=False``), in
float32: a beam's score is the sum of its log probabilities, that of an ended one divided by a power of its length.
Where bans leave fewer continuations than beams, fewer grow; transformers repeats some then, and none is of use twice.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from engine_core.request import BeamSearch


@dataclass(frozen=True, slots=True)
class Candidates:
    """The likeliest tokens after a beam, the likeliest first."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """float32, after bans and penalties; −inf: banned."""


@dataclass(frozen=True, slots=True)
class Beam:
    """An output that grows."""

    member: int
    """The number of the sequence that computes it."""
    score: float
    """Sum of its log probabilities."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A beam with one more token."""

    parent: int
    """The member whose output it continues."""
    token_id: int
    score: float
    """As of a ``Beam``."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An output that has ended."""

    token_ids: tuple[int, ...]
    score: float
    """Sum of its log probabilities, divided by length ** length_penalty."""


class Search:
    """The beams of one request. The caller computes candidates, and tells which member goes on with which successor."""

    def __init__(self, params: BeamSearch, open_choices: Sequence[int], max_output: int) -> None:
        """``open_choices``: those to report, by number in the order of scores. ``max_output``: tokens of the longest
        output.
        """
        self.width = params.width
        self.open = list(open_choices)
        """Choices that are still to be reported, ascending."""
        self.beams = [Beam(0, 0.0)]
        """Those that grow, the likeliest first; at first the prompt alone."""
        self.ended: list[Hypothesis] = []
        """At most ``width``, the best first."""
        self.is_over = False
        self._penalty = params.length_penalty
        self._early_stopping = params.early_stopping
        self._max_output = max_output

    def advance(
        self, outputs: dict[int, list[int]], candidates: dict[int, Candidates], ends: Callable[[int, int], bool]
    ) -> list[Successor]:
        """Choose what goes on, the likeliest first; nothing if the search is over.

        ``outputs`` and ``candidates`` are of each beam's member; of the latter at least ``width``, and one for each
        token that ends. ``ends``: whether a token ends an output of a length (with it).
        """
        length = len(outputs[self.beams[0].member]) + 1
        growing: list[Successor] = []
        fresh: list[Hypothesis] = []
        for rank, each in enumerate(self._merged(candidates)):
            if rank >= self.width and len(growing) == self.width:
                break
            if not ends(each.token_id, length):
                growing.append(each)
            elif rank < self.width:  # what ends is worse than what grows counts no more
                score = _float32(each.score / length**self._penalty)
                fresh.append(Hypothesis((*outputs[each.parent], each.token_id), score))
        del growing[self.width :]
        # Older ones come before newer ones of the same score.
        self.ended = sorted(self.ended + fresh, key=lambda each: -each.score)[: self.width]
        self.is_over = not growing or self._is_settled(growing[0].score, length)
        return [] if self.is_over else growing

    def _merged(self, candidates: dict[int, Candidates]) -> Iterator[Successor]:
        """All that may follow, in order of their scores; equals in the order of beams, then of candidates."""
        return heapq.merge(
            *(_successors(beam, candidates[beam.member]) for beam in self.beams), key=lambda each: -each.score
        )

    def _is_settled(self, best: float, length: int) -> bool:
        """Whether ``width`` outputs have ended, and the beam with the ``best`` score need not go on."""
        if len(self.ended) < self.width:
            return False
        if self._early_stopping:
            return True
        longest = self._early_stopping is None and self._penalty > 0.0
        reached = _float32(best / (self._max_output if longest else length) ** self._penalty)
        return reached <= self.ended[-1].score


def _successors(beam: Beam, candidates: Candidates) -> Iterator[Successor]:
    for token_id, logprob in zip(candidates.token_ids, candidates.logprobs, strict=True):
        if logprob == -inf:
            return
        yield Successor(beam.member, token_id, _float32(beam.score + logprob))


def _float32(value: float) -> float:
    """The nearest float32: an operation on two of them in double precision, then rounded, is exact to the last bit."""
    return array("f", (value,))[0]
