"""The log of one choice: what is added, where it ends, and what a stop cuts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.ring.events import ChoiceEnd, FinishReason
from services.ring.ledger import ChoiceLog
from services.ring.logprobs import PackedLogprobs
from tests.services.ring.token_logprobs import TokenLogprob, packed

ids = st.lists(st.integers(0, 99), max_size=8)


def scores(tokens: list[int]) -> PackedLogprobs:
    return packed(TokenLogprob(-float(token), 1) for token in tokens)


@given(resumed=ids, computed=ids, more=ids, end=st.none() | st.sampled_from(FinishReason), position=st.integers(-1, 18))
def test_a_stop_wins_over_ends_at_or_behind_it(
    resumed: list[int], computed: list[int], more: list[int], end: FinishReason | None, position: int
) -> None:
    log = ChoiceLog(resumed, keeps_logprobs=True)
    log.append(computed, scores(computed))
    whole = resumed + computed
    if end is not None:
        log.finish(ChoiceEnd(end, len(whole)))
    stopped = log.stop_at(position)
    assert stopped == (1 <= position <= len(whole))
    kept = whole[:position] if stopped else whole
    assert list(log.ids) == kept
    assert log.logprobs == scores(kept[len(resumed) :])
    if stopped:
        assert log.end == ChoiceEnd(FinishReason.STOP, position)
    else:
        assert log.end == (None if end is None else ChoiceEnd(end, len(whole)))
    before = log.end
    log.append(more, scores(more))
    log.finish(ChoiceEnd(FinishReason.CANCELLED, 0))
    if before is not None:
        assert list(log.ids) == kept, "nothing is added behind an end"
        assert log.end == before, "an end stands"


def test_an_earlier_stop_wins_over_a_later_one() -> None:
    log = ChoiceLog([1, 2], keeps_logprobs=False)
    log.append([3, 4, 5], None)
    assert log.stop_at(4)
    assert not log.stop_at(5)
    assert log.stop_at(3)
    assert list(log.ids) == [1, 2, 3]
    assert log.logprobs is None


def test_an_end_before_the_stop_wins() -> None:
    log = ChoiceLog([1, 2, 3], keeps_logprobs=False)
    log.finish(ChoiceEnd(FinishReason.LENGTH, 2))
    assert not log.stop_at(3)
    assert log.end == ChoiceEnd(FinishReason.LENGTH, 2)
