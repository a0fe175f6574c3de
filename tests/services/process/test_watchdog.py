"""What stands still is told from what is idle, from what takes long, and from what stood still with everything else."""

import threading
import time

import pytest

from services.process.watchdog import Stillness, Watchdog, stacks

INTERVAL = 0.01


@pytest.mark.parametrize(
    ("looks", "still"),
    [
        ([(0, 1), (1, 1), (2, 1)], 2),
        ([(0, 1), (1, 2), (2, 2)], 1),
        ([(0, 1), (1, 1), (2, None)], 0),
        ([(0, None), (1, None), (2, 1), (3, 1)], 1),
        ([(0, 1), (1, 1), (1000, 1), (1001, 1)], 4),  # whoever looks stood still, too
        ([(0, 1), (1000, 2), (1001, 2)], 1),
    ],
)
def test_stillness_is_what_was_seen_of_it(looks, still):
    stillness = Stillness(1.0)
    *_, last = [stillness.look(now, mark) for now, mark in looks]
    assert last == still


class Watched:
    """Something that a watchdog looks at."""

    def __init__(self, limit):
        self.mark, self.limit = 0, limit
        self.told, self.ended = [], threading.Event()
        self.looks = 0
        self.watchdog = Watchdog(
            "watchdog", self.look, lambda: self.limit, self.hung, interval=INTERVAL, last_words=INTERVAL, end=self.end
        )

    def look(self):
        self.looks += 1
        return self.mark

    def hung(self, seconds, limit):
        self.told.append((seconds, limit))

    def end(self, code):
        self.code = code
        self.ended.set()

    def looked_at(self, times):
        """Return after so many further looks."""
        goal = self.looks + times
        while self.looks < goal:
            time.sleep(INTERVAL)


def test_what_stands_still_is_told_of_and_ended():
    watched = Watched(5 * INTERVAL)
    watched.watchdog.start()
    assert watched.ended.wait(60)
    ((seconds, limit),) = watched.told
    assert seconds > limit == 5 * INTERVAL
    assert watched.code == 1


def test_idleness_and_long_work_within_its_limit_are_no_hang():
    watched = Watched(5 * INTERVAL)
    watched.mark = None
    watched.watchdog.start()
    watched.looked_at(20)
    watched.limit, watched.mark = 3600.0, 1
    watched.looked_at(20)
    watched.watchdog.stop()
    assert not watched.told


def test_it_is_ended_even_if_telling_hangs():
    watched, forever = Watched(0.0), threading.Event()
    watched.watchdog._hung = lambda seconds, limit: forever.wait()
    watched.watchdog.start()
    assert watched.ended.wait(60)
    forever.set()


def test_stacks_say_where_each_other_thread_is():
    here, done = threading.Event(), threading.Event()

    def stand_still():
        here.set()
        done.wait()

    thread = threading.Thread(target=stand_still, name="standing")
    thread.start()
    here.wait()
    frames = stacks()
    done.set()
    thread.join()
    assert any(frame.endswith("stand_still") for frame in frames["standing"])
    assert threading.current_thread().name not in frames
