"""Suspicion, against the whole history of beats looked at from the start."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ring.liveness import BEAT_LIMIT, Liveness, step_limit


@dataclass(frozen=True)
class Beat:
    after: float
    steps: int
    busy: bool
    timeout: float


beats = st.lists(
    st.builds(
        Beat,
        after=st.sampled_from([0.1, 0.5, 1.9, 2.0, 2.1, 9.0, 30.0]),
        steps=st.integers(0, 2),
        busy=st.booleans(),
        timeout=st.sampled_from([10.0, 12.0, 60.0]),
    ),
    max_size=12,
)


@given(beats=beats, later=st.sampled_from([0.0, 1.0, 2.0, 2.5, 11.0, 70.0]))
def test_a_peer_is_suspected_when_its_history_says_so(beats: list[Beat], later: float) -> None:
    watched = Liveness(100.0)
    now = 100.0
    timeline: list[tuple[float, Beat]] = []
    for beat in beats:
        now += beat.after
        watched.beat(now, beat.steps, busy=beat.busy, step_timeout=beat.timeout)
        timeline.append((now, beat))
    now += later
    silent = now - (timeline[-1][0] if timeline else 100.0) > BEAT_LIMIT
    moved = [100.0]
    for i, (at, beat) in enumerate(timeline):
        if i == 0 or not beat.busy or beat.steps != timeline[i - 1][1].steps:
            moved.append(at)
    last = timeline[-1][1] if timeline else None
    stuck = last is not None and last.busy and now - moved[-1] > last.timeout + BEAT_LIMIT
    reason = watched.suspicion(now)
    assert (reason is not None) == (silent or stuck)
    if reason is not None:
        assert ("no sign of life" if silent else "no step") in reason


@pytest.mark.parametrize(
    ("longest", "largest", "limit"), [(0.0, 0.0, 10.0), (0.4, 1.9, 10.0), (3.0, 1.0, 60.0), (0.1, 34.0, 170.0)]
)
def test_a_step_may_take_ten_seconds_or_longer_where_some_did_or_might(
    longest: float, largest: float, limit: float
) -> None:
    assert step_limit(longest, largest) == limit


def test_an_engine_that_gets_work_after_a_long_rest_has_its_whole_time() -> None:
    watch = Liveness(0.0)
    for second in range(100):
        watch.beat(float(second), 7)
    watch.beat(100.0, 7, busy=True)
    assert watch.suspicion(100.5) is None
    for second in range(101, 114):
        watch.beat(float(second), 7, busy=True)
    assert watch.suspicion(113.5) is not None
