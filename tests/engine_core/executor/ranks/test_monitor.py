"""The monitor of ranks, by connections without processes: what it takes for a failure, and whom it names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import Pipe
from queue import SimpleQueue

import pytest

from engine_core.distributed.ranks import Rank
from engine_core.errors import ExecutorError, RankFailedError
from engine_core.executor.ranks import monitor
from engine_core.executor.ranks.connection import BEAT, Raised, RankConnections
from engine_core.executor.ranks.monitor import RankMonitor
from engine_core.executor.ranks.process import RankProcess

SILENCE = 0.7
"""Seconds."""


class Connected(RankProcess):
    """A rank of which there are only connections."""

    ended = None
    busy = False

    def __init__(self, number: int) -> None:
        self.rank = Rank(number, 2)
        (calls, self.calls), (signs, self.signs) = Pipe(), Pipe()
        self.connections = RankConnections(calls, signs)

    def ending(self, seconds: float) -> str | None:
        return None

    def wants_to_run(self) -> bool:
        return self.busy

    def kill(self) -> None: ...

    def wait(self, seconds: float) -> bool:
        return True


class Watched:
    def __init__(self) -> None:
        self.ranks = [Connected(number) for number in range(2)]
        self.errors: SimpleQueue[ExecutorError] = SimpleQueue()
        self.monitor = RankMonitor(self.ranks, self.errors.put, SILENCE)
        self.monitor.start()

    def error(self) -> str:
        return str(self.errors.get(timeout=5))


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.monitor.stop()
    for rank in watched.ranks:
        rank.close()
        rank.calls.close()
        rank.signs.close()


def test_the_rank_that_failed_first_is_named_not_the_one_that_misses_it(watched: Watched) -> None:
    watched.ranks[0].signs.send(Raised(RankFailedError("a rank is gone"), 3))
    time.sleep(0.15)
    watched.ranks[1].signs.send(Raised(IndexError("no such token"), 3))
    assert watched.error() == "step 3 failed on rank tp1/2 pp0/1: IndexError: no such token"


def test_a_rank_that_misses_another_is_believed_if_no_cause_comes(watched: Watched) -> None:
    watched.ranks[0].signs.send(Raised(RankFailedError("a rank is gone"), 3))
    assert watched.error() == "step 3 failed on rank tp0/2 pp0/1: RankFailedError: a rank is gone"


def test_a_rank_that_closes_its_connection_is_named(watched: Watched) -> None:
    watched.ranks[1].signs.close()
    assert watched.error() == "rank tp1/2 pp0/1 has lost its connection to the engine"


def test_silence_is_a_failure_only_where_beats_are_expected(watched: Watched) -> None:
    time.sleep(0.6)
    assert watched.errors.empty()
    watched.monitor.expect_beats()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        watched.ranks[0].signs.send_bytes(BEAT)
        time.sleep(0.05)
    assert watched.error() == "rank tp1/2 pp0/1 has not beaten for 0.7 s: it hangs, or is cut off"


def test_a_rank_that_may_only_wait_for_a_processor_has_more_time(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_STARVED", 1.2)
    for rank in watched.ranks:
        rank.busy = True
    watched.monitor.expect_beats()
    assert watched.error().endswith("has not beaten for 1.2 s: it hangs, or is cut off")


def test_beats_that_waited_while_the_machine_stood_still_count(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor finds itself a minute late: that is one tick."""
    watched.monitor.expect_beats()
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 60)
    for _ in range(3):
        time.sleep(0.1)
        for rank in watched.ranks:
            rank.signs.send_bytes(BEAT)
    assert watched.errors.empty()
