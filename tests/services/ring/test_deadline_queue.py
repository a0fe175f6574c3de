"""What waits is told once when it is due, and no sooner, however often it was given another time."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from services.ring.deadline_queue import DeadlineQueue

KEYS = st.sampled_from("abcd")
TIMES = st.integers(0, 9).map(float)


@given(st.lists(st.one_of(st.tuples(KEYS, TIMES), KEYS, TIMES), max_size=100))
@example([("a", float(number % 10)) for number in range(80)])
def test_each_item_is_returned_once_when_it_is_due(steps: list[tuple[str, float] | str | float]) -> None:
    queue: DeadlineQueue[str] = DeadlineQueue()
    waiting: dict[str, float] = {}
    told: set[str] = set()
    for step in steps:
        if isinstance(step, tuple):
            key, due = step
            queue.put(key, key, due)
            waiting[key] = due
            told.discard(key)
        elif isinstance(step, str):
            queue.discard(step)
            waiting.pop(step, None)
            told.discard(step)
        else:
            expected = {key for key, due in waiting.items() if due <= step} - told
            assert set(queue.due(step)) == expected
            told |= expected
        assert set(queue.items()) == set(waiting)
        assert (len(queue), "a" in queue) == (len(waiting), "a" in waiting)
        assert len(queue._times) <= 2 * len(waiting) + 65, "times of what is gone do not pile up"
