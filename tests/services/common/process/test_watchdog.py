"""A hang is told apart from idleness, from long work, and from a machine that stood still as a whole."""

import threading
import time

import pytest

from services.common.process.watchdog import StallTimer, Watchdog, thread_stacks

INTERVAL = 0.01


@pytest.mark.parametrize(
    ("samples", "stalled"),
    [
        ([(0, 1), (1, 1), (2, 1)], 2),
        ([(0, 1), (1, 2), (2, 2)], 1),
        ([(0, 1), (1, 1), (2, None)], 0),
        ([(0, None), (1, None), (2, 1), (3, 1)], 1),
        ([(0, 1), (1, 1), (1000, 1), (1001, 1)], 4),  # the sampler stood still, too
        ([(0, 1), (1000, 2), (1001, 2)], 1),
    ],
)
def test_a_stall_counts_only_while_it_is_sampled(samples, stalled):
    timer = StallTimer(1.0)
    *_, last = [timer.update(now, progress) for now, progress in samples]
    assert last == stalled


class Watched:
    """Progress that a watchdog watches."""

    def __init__(self, limit):
        self.progress, self.limit = 0, limit
        self.reports, self.ended = [], threading.Event()
        self.samples = 0
        self.watchdog = Watchdog(
            "watchdog",
            self.sample,
            lambda: self.limit,
            lambda seconds, limit: self.report(seconds, limit),
            interval=INTERVAL,
            report_timeout=INTERVAL,
            end=self.end,
        )

    def sample(self):
        self.samples += 1
        return self.progress

    def report(self, seconds, limit):
        self.reports.append((seconds, limit))

    def end(self, code):
        self.code = code
        self.ended.set()

    def wait_sampled(self, times):
        """Return after this many further samples."""
        goal = self.samples + times
        while self.samples < goal:
            time.sleep(INTERVAL)


def test_a_process_that_hangs_is_reported_and_ended():
    watched = Watched(5 * INTERVAL)
    watched.watchdog.start()
    assert watched.ended.wait(60)
    ((seconds, limit),) = watched.reports
    assert seconds > limit == 5 * INTERVAL
    assert watched.code == 1


def test_idleness_and_long_work_within_its_limit_are_no_hang():
    watched = Watched(5 * INTERVAL)
    watched.progress = None
    watched.watchdog.start()
    watched.wait_sampled(20)
    watched.limit, watched.progress = 3600.0, 1
    watched.wait_sampled(20)
    watched.watchdog.stop()
    assert not watched.reports


def test_it_is_ended_even_if_the_report_hangs():
    watched, forever = Watched(0.0), threading.Event()
    watched.report = lambda seconds, limit: forever.wait()
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
    frames = thread_stacks()
    done.set()
    thread.join()
    assert any(frame.endswith("stand_still") for frame in frames["standing"])
    assert threading.current_thread().name not in frames
