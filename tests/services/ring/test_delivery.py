"""Delivery state, against a model that keeps everything it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from services.ring.delivery import Delivery, Verdict
from services.ring.errors import Code, Status
from services.ring.events import ChoiceEnd, FinishReason, TypedParts


@dataclass
class Naive:
    """Every choice as a dictionary of positions."""

    epoch: int = 0
    tokens: dict[int, dict[int, int]] = field(default_factory=dict)
    ends: dict[int, ChoiceEnd] = field(default_factory=dict)

    def takes(self, epoch: int, choice: int) -> bool:
        return epoch == self.epoch and choice in self.tokens and choice not in self.ends

    def delta(self, epoch: int, choice: int, first: int, ids: list[int]) -> Verdict:
        if not self.takes(epoch, choice):
            return Verdict.DROP
        have, brought = set(self.tokens[choice]), range(first, first + len(ids))
        if first == len(have):
            self.tokens[choice].update(zip(brought, ids, strict=True))
            return Verdict.ACCEPT
        return Verdict.DROP if first in have and have.issuperset(brought) else Verdict.REPLAY

    def end(self, epoch: int, choice: int, end: ChoiceEnd) -> Verdict:
        if not self.takes(epoch, choice):
            return Verdict.DROP
        if end.position != len(self.tokens[choice]):
            return Verdict.REPLAY
        self.ends[choice] = end
        return Verdict.ACCEPT


choices = st.integers(0, 3)
epochs = st.integers(0, 3)
positions = st.integers(0, 5)
events = st.lists(
    st.one_of(
        st.tuples(st.just("delta"), epochs, choices, positions, st.lists(st.integers(0, 9), max_size=3)),
        st.tuples(st.just("end"), epochs, choices, positions, st.just([])),
        st.just(("epoch", 0, 0, 0, [])),
        st.just(("abort", 0, 0, 0, [])),
    ),
    max_size=30,
)


@given(resumed=st.dictionaries(st.integers(0, 2), st.lists(st.integers(0, 9), max_size=3), min_size=1), events=events)
def test_verdicts_are_those_of_a_naive_reader(
    resumed: dict[int, list[int]], events: list[tuple[str, int, int, int, list[int]]]
) -> None:
    delivery = Delivery(resumed)
    naive = Naive(tokens={choice: dict(enumerate(ids)) for choice, ids in resumed.items()})
    for kind, epoch, choice, position, ids in events:
        match kind:
            case "epoch":
                naive.epoch += 1
                assert delivery.next_epoch() == naive.epoch
            case "abort":
                error = Status(Code.UNAVAILABLE, "gone")
                unended = naive.tokens.keys() - naive.ends.keys()
                aborted = {c: ChoiceEnd(FinishReason.ERROR, len(naive.tokens[c]), error=error) for c in unended}
                assert delivery.abort(FinishReason.ERROR, error) == aborted
                naive.ends.update(aborted)
            case "delta":
                assert delivery.delta(epoch, choice, position, ids) == naive.delta(epoch, choice, position, ids)
            case "end":
                end = ChoiceEnd(FinishReason.LENGTH, position)
                assert delivery.end(epoch, choice, end) == naive.end(epoch, choice, end)
        unfinished = {
            choice: [tokens[i] for i in range(len(tokens))]
            for choice, tokens in naive.tokens.items()
            if choice not in naive.ends
        }
        assert {choice: list(ids) for choice, ids in delivery.unfinished().items()} == unfinished
        assert delivery.delivered() == {choice: len(ids) for choice, ids in unfinished.items()}
        assert delivery.completion_tokens == sum(map(len, naive.tokens.values()))
        assert delivery.finished == (not unfinished)
        assert {c: s.end for c, s in delivery.choices.items() if s.end is not None} == naive.ends


def test_replays_are_counted_until_something_fits() -> None:
    delivery = Delivery({0: []})
    epoch = delivery.next_epoch()
    delivery.replays = 3
    assert delivery.delta(epoch, 0, 4, [1]) is Verdict.REPLAY
    assert delivery.replays == 3
    assert delivery.delta(epoch, 0, 0, [1]) is Verdict.ACCEPT
    assert delivery.replays == 0


def test_reasoning_is_counted_as_far_as_it_was_reported() -> None:
    delivery = Delivery({0: [], 1: [5], 2: []})
    delivery.next_epoch()
    delivery.delta(1, 0, 0, [1, 2], TypedParts(reasoning_tokens=2))
    delivery.delta(1, 0, 1, [2], TypedParts(reasoning_tokens=9))  # dropped
    delivery.delta(1, 1, 1, [6], TypedParts(reasoning_tokens=1))
    delivery.end(1, 1, ChoiceEnd(FinishReason.STOP, 2, parts=TypedParts(reasoning_tokens=2)))
    assert delivery.reasoning_tokens == 4
    ends = delivery.abort(FinishReason.CANCELLED)
    assert {choice: end.parts for choice, end in ends.items()} == {0: TypedParts(reasoning_tokens=2), 2: None}


def test_accepted_drafts_are_no_more_than_the_tokens_that_were_delivered() -> None:
    """An engine may have gone on behind a stop string; choices that did not end tell nothing."""
    delivery = Delivery({0: (), 1: (), 2: ()})
    epoch = delivery.next_epoch()
    for choice, drafts in ((0, (2, 5)), (1, (9, 1))):
        delivery.delta(epoch, choice, 0, [7, 7, 7])
        assert delivery.end(epoch, choice, ChoiceEnd(FinishReason.STOP, 3, drafts=drafts)) is Verdict.ACCEPT
    delivery.delta(epoch, 2, 0, [7])
    delivery.abort(FinishReason.CANCELLED)
    assert (delivery.accepted_drafts, delivery.rejected_drafts) == (2 + 3, 5 + 1)


def test_what_is_cut_short_may_still_be_computed() -> None:
    whole, cut = Delivery({0: (), 1: ()}), Delivery({0: (), 1: ()})
    for delivery in (whole, cut):
        epoch = delivery.next_epoch()
        delivery.end(epoch, 0, ChoiceEnd(FinishReason.STOP, 0))
        assert not delivery.is_computed
    whole.end(epoch, 1, ChoiceEnd(FinishReason.STOP, 0))
    cut.abort(FinishReason.CANCELLED)
    assert (whole.is_computed, cut.is_computed) == (True, False)
    whole.abort(FinishReason.CANCELLED)  # too late: it has ended
    assert whole.is_computed
