"""Where a delta falls, against the positions of its tokens counted one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.ring.events import Fit, fit

small = st.integers(0, 6)


@given(first=small, length=small, count=small)
def test_a_delta_is_placed_as_its_tokens_are(first: int, length: int, count: int) -> None:
    positions = range(first, first + length)
    have = set(range(count))
    match fit(first, length, count):
        case Fit.NEXT:
            assert first == count
        case Fit.OLD:
            assert first < count
            assert have.issuperset(positions)
        case Fit.OVERLAP:
            assert first in have
            assert first + length - 1 not in have
        case Fit.GAP:
            assert first > count, "the token at the count is missing"
