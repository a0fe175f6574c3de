"""Suspicion, against the whole history of beats looked at from the start."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.ring.liveness import BEAT_LIMIT, STEP_FACTOR, STEP_FLOOR, Liveness


@dataclass(frozen=True)
class Beat:
    after: float
    steps: int
    busy: bool
    longest: float


beats = st.lists(
    st.builds(
        Beat,
        after=st.sampled_from([0.1, 0.5, 1.9, 2.0, 2.1, 9.0, 30.0]),
        steps=st.integers(0, 2),
        busy=st.booleans(),
        longest=st.sampled_from([0.0, 0.1, 0.6, 3.0]),
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
        watched.beat(now, beat.steps, busy=beat.busy, longest_step=beat.longest)
        timeline.append((now, beat))
    now += later
    silent = now - (timeline[-1][0] if timeline else 100.0) > BEAT_LIMIT
    moved = [100.0]
    for i, (at, beat) in enumerate(timeline):
        if i == 0 or not beat.busy or beat.steps != timeline[i - 1][1].steps:
            moved.append(at)
    last = timeline[-1][1] if timeline else None
    stuck = last is not None and last.busy and now - moved[-1] > max(STEP_FLOOR, STEP_FACTOR * last.longest)
    reason = watched.suspicion(now)
    assert (reason is not None) == (silent or stuck)
    if silent:
        assert reason is not None
        assert "no sign of life" in reason


def test_a_suspected_peer_is_trusted_again_when_it_beats() -> None:
    watched = Liveness(0.0)
    assert watched.suspicion(BEAT_LIMIT) is None
    assert watched.suspicion(BEAT_LIMIT + 0.1) is not None
    watched.beat(5.0)
    assert watched.suspicion(5.0) is None


def test_an_engine_whose_steps_are_long_has_longer_to_step() -> None:
    watched = Liveness(0.0)
    for second in range(40):
        watched.beat(float(second), 7, busy=True, longest_step=2.0)
    assert watched.suspicion(39.5) is None
    watched.beat(40.5, 7, busy=True, longest_step=2.0)
    assert "no step" in (watched.suspicion(40.5) or "")
    watched.beat(41.0, 8, busy=True, longest_step=2.0)
    assert watched.suspicion(41.0) is None


def test_an_engine_that_gets_work_after_a_long_rest_has_its_whole_time() -> None:
    watch = Liveness(0.0)
    for second in range(100):
        watch.beat(float(second), 7)
    watch.beat(100.0, 7, busy=True)
    assert watch.suspicion(100.5) is None
    for second in range(101, 112):
        watch.beat(float(second), 7, busy=True)
    assert watch.suspicion(111.5) is not None
