"""The waits between attempts: exponential, with jitter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.links.redial import Backoff


def upper(low, high):
    return high


def test_waits_double_up_to_the_longest_and_begin_anew_after_a_success():
    backoff = Backoff(0.1, 1.0, uniform=upper)
    assert [backoff.next() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1)


@given(st.floats(0.01, 10), st.floats(1, 100), st.floats(1, 4), st.integers(1, 30))
def test_no_wait_is_near_zero_or_above_the_longest(first, times, factor, attempts):
    backoff = Backoff(first, first * times, factor)
    ceiling = first
    for _ in range(attempts):
        wait = backoff.next()
        assert ceiling / 2 <= wait <= ceiling
        ceiling = min(ceiling * factor, first * times)


def test_peers_that_lost_the_same_server_do_not_return_together():
    assert len({Backoff(1.0, 1.0).next() for _ in range(20)}) > 10


@pytest.mark.parametrize("arguments", [(0, 1), (2, 1), (1, 2, 0.5)])
def test_schedules_that_are_none(arguments):
    with pytest.raises(ValueError, match="no backoff"):
        Backoff(*arguments)
