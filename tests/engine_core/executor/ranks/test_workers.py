"""Executors whose ranks are processes: calls, steps, and all ways in which one can fail. Ranks have no model here."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_core.config import EngineConfig, ParallelConfig, SchedulerConfig
from engine_core.distributed.ranks import Rank
from engine_core.errors import CheckpointError, ConfigError, ExecutorError
from engine_core.executor.ranks import child_process, monitor
from engine_core.executor.ranks import workers as module
from engine_core.executor.ranks.connection import portable
from engine_core.executor.ranks.identity import require_equal
from engine_core.executor.ranks.local import LocalLauncher
from engine_core.executor.ranks.workers import RankWorkers
from engine_core.media import Picture, PictureShape, View
from engine_core.progress import StartupProgress
from engine_core.startup import start_engine
from engine_core.step import EncoderPlan, StepPlan
from tests.processes import alive

from .scripted_rank import scripted

SECONDS = 30.0
"""Enough for what happens at once, however busy the machine is. How soon a failure is noticed depends on that; what the
executor says of it tells that it was noticed as it should be.
"""


def plan(step_id: int) -> StepPlan:
    return StepPlan(step_id, [], [], [], [], [], {})


class Failure:
    """With what workers failed."""

    def __init__(self, workers: Any) -> None:
        self._failed = threading.Event()
        self.errors: list[BaseException] = []
        workers.failure.on_failure(self._note)

    def _note(self, error: BaseException) -> None:
        self.errors.append(error)
        self._failed.set()

    def wait(self) -> BaseException:
        assert self._failed.wait(SECONDS)
        [error] = self.errors
        return error


def pids(executor: Any) -> list[int]:
    return [rank._process.pid for rank in executor._ranks]


@pytest.fixture(autouse=True)
def _there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a rank's end, its last words and the cause of a failure to be known. None of these is waited for in full."""
    monkeypatch.setattr(module, "_CAUSE_SECONDS", SECONDS)
    monkeypatch.setattr(monitor, "_ENDING_SECONDS", SECONDS)
    monkeypatch.setattr(child_process, "_OUTPUT_SECONDS", SECONDS)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No process, zombie, descriptor or thread."""
    gc.collect()  # what earlier tests in this process left goes now
    before = _descriptors(), threading.active_count(), _children()
    yield
    assert (_descriptors(), threading.active_count(), _children()) == before


def _descriptors() -> dict[str, str]:
    """What each open one is, so that a failure says it."""
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this listing itself
            found[each.name] = str(each.readlink())
    return found


def _children() -> set[str]:
    """Zombies, too; other tests in this process may have some of their own."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {child for task in tasks for child in task.read_text().split()}


def test_calls_are_answered_by_rank_and_progress_is_of_all_together() -> None:
    with scripted(tp=2, pp=2, serving=False) as executor:
        assert executor.collective_rpc("echo", "a", 2) == [(rank, "a", 2) for rank in range(4)]
        told: list[tuple[int, int]] = []
        assert executor.collective_rpc("count", on_progress=lambda *each: told.append(each)) == [4] * 4
        assert told[-1] == (16, 16)
        assert all(total == 16 for _, total in told)
        titles = [Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0") for pid in pids(executor)]
        assert titles[1:3] == ["ringline engine scripted rank tp1/2 pp0/2", "ringline engine scripted rank tp0/2 pp1/2"]


def test_the_rank_that_samples_answers_and_others_hear_with_the_next_plan() -> None:
    with scripted(tp=1, pp=3) as executor:
        pending = [executor.submit(plan(step)) for step in range(3)]
        assert [each.result().token_ids for each in pending] == [[[step, 2]] for step in range(3)]
        assert pending[0].result().step_id == 0  # asked again
        executor.submit(plan(3)).result()
        executor.submit(plan(4)).result()
        follower, also, sampler = executor.collective_rpc("seen")
        assert sampler == [0, 1, 2, 3, 4]
        assert follower == also == [0, 1, 2, (0, [0, 2]), (1, [1, 2]), (2, [2, 2]), 3, (3, [3, 2]), 4]


def test_pictures_go_to_all_ranks_of_the_first_stage_alone() -> None:
    picture = Picture.of(PictureShape(4, token_rows=2, token_columns=2), [View(28, 56, bytes(28 * 56 * 3))])
    encoder = EncoderPlan([b"forgotten"], [(picture.digest, picture)])
    with scripted(tp=2, pp=2) as executor:
        executor.submit(replace(plan(0), encoder=encoder)).result()
        assert executor.collective_rpc("encoder") == [encoder, encoder, None, None]


@pytest.mark.parametrize("error", [ConfigError("dtype", "x", "y"), CheckpointError("damaged"), ValueError("what")])
def test_what_a_worker_raises_is_raised_as_it_is(error: Exception) -> None:
    with scripted(serving=False) as executor, pytest.raises(type(error)) as caught:
        executor.collective_rpc("do", 1, "raise", error)
    assert str(caught.value) == str(error)


def test_an_error_after_the_start_leaves_no_reply_for_the_next_call() -> None:
    with scripted() as executor:
        for number in range(2):
            with pytest.raises(ValueError, match=r"^what$"):
                executor.collective_rpc("do", number, "raise", ValueError("what"))
            assert executor.collective_rpc("echo", number) == [(rank, number) for rank in range(2)]
        assert executor.submit(plan(1)).result().token_ids == [[1, 0]]


def test_a_rank_that_does_not_answer_in_time_after_the_start_ends_the_executor() -> None:
    with scripted() as executor:
        failure = Failure(executor)
        with pytest.raises(ExecutorError, match=r"^rank tp1/2 pp0/1 did not finish do within timeout=0\.5 s: ") as late:
            executor.collective_rpc("do", 1, "sleep", 60, timeout=0.5)
        assert failure.wait() is late.value
        with pytest.raises(ExecutorError, match="does not run: it has failed"):
            executor.collective_rpc("echo")


class _Unportable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def test_an_exception_that_cannot_be_pickled_says_the_same() -> None:
    error = portable(_Unportable(1, 2))
    assert (type(error), str(error)) == (ExecutorError, "_Unportable: 1 2")


def test_a_call_that_takes_too_long_names_rank_stage_and_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.2)
    late = r"^rank tp1/2 pp0/1 did not finish do within --worker-start-timeout=3 s: "
    with scripted(serving=False) as executor:
        hasty = ParallelConfig(tensor_parallel_size=2, worker_start_timeout=3.0)
        monkeypatch.setattr(executor, "config", EngineConfig(parallel=hasty))
        with pytest.raises(ExecutorError, match=late):
            executor.collective_rpc("do", 1, "sleep", 60)


def test_a_rank_that_dies_during_a_call_leaves_its_last_words() -> None:
    with scripted(serving=False) as executor:
        failure = Failure(executor)
        died = r"^rank tp1/2 pp0/1 \(pid \d+\) ended with exit code 3; its last lines: the last words$"
        with pytest.raises(ExecutorError, match=died) as caught:
            executor.collective_rpc("do", 1, "exit", 3)
        assert failure.wait() is caught.value
        with pytest.raises(ExecutorError, match="does not run: it has failed"):
            executor.submit(plan(1))


@pytest.mark.parametrize("number", [0, 1])
def test_a_step_that_raises_on_any_rank_ends_the_executor(number: int) -> None:
    with scripted() as executor:
        failure = Failure(executor)
        executor.collective_rpc("in_step", number, "raise", IndexError("no such token"))
        message = rf"step 7 failed on rank tp{number}/2 pp0/1: IndexError: no such token$"

        def steps() -> None:
            end = time.monotonic() + SECONDS
            for step in count(7):
                executor.submit(plan(step)).result()
                assert time.monotonic() < end
                time.sleep(0.05)  # the rank that samples has not failed

        with pytest.raises(ExecutorError, match=message):
            steps()
        assert isinstance(failure.wait().__cause__, IndexError)


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize(("number", "sign", "words"), [
    (0, signal.SIGKILL, "was killed by SIGKILL"),
    (1, signal.SIGKILL, "was killed by SIGKILL"),
    (1, signal.SIGSTOP, "has not beaten for 0.7 s"),
])  # fmt: skip
def test_a_rank_that_is_killed_or_stopped_ends_all(
    number: int, sign: signal.Signals, words: str, in_step: bool
) -> None:
    with scripted() as executor:
        if in_step:
            executor.collective_rpc("in_step", 0, "sleep", 60)
            pending = executor.submit(plan(1))
        failure, children = Failure(executor), pids(executor)
        os.kill(children[number], sign)
        assert words in str(failure.wait())
        if in_step:
            with pytest.raises(ExecutorError, match=words):
                pending.result()
        executor.close()
        assert not any(map(alive, children))


def test_a_rank_whose_link_is_cut_ends_all() -> None:
    with scripted() as executor:
        failure = Failure(executor)
        executor._ranks[1].connections.shut()
        assert re.match(r"rank tp1/2 pp0/1 \(pid \d+\) ended with exit code [01]", str(failure.wait()))


def test_the_collection_of_garbage_after_the_start_is_no_failure() -> None:
    with scripted(serving=False) as executor:
        failure = Failure(executor)
        executor.collective_rpc("warm_up")
        executor.start_steps(1, 0.0)
        time.sleep(1.0)
        assert failure.errors == []


WATCHED = """
import time
from engine_core.distributed.ranks import Rank
from engine_core.executor.ranks.monitor import RankMonitor
from tests.engine_core.executor.ranks.scripted_rank import ScriptedRank
ranks = [ScriptedRank(Rank(number, 2)) for number in range(2)]
assert ranks[0].connections.signs.recv_bytes() == b"" == ranks[1].connections.signs.recv_bytes()  # they beat
failures = []
monitor = RankMonitor(ranks, failures.append, 0.7)
monitor.start()
monitor.expect_beats()
print("watched", flush=True)
input()
time.sleep(1.0)
print(failures)
"""


def test_a_machine_that_stands_still_is_no_failure() -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", WATCHED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == "watched\n"
        os.killpg(engine.pid, signal.SIGSTOP)  # the ranks, too
        time.sleep(1.5)
        os.killpg(engine.pid, signal.SIGCONT)
        assert engine.communicate("\n") == ("[]\n", None)


def test_closing_is_bounded_whatever_a_rank_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.5)
    with scripted(serving=False) as executor:
        children = pids(executor)
        os.kill(children[1], signal.SIGSTOP)
        start = time.monotonic()
        executor.close()
        assert 0.5 < time.monotonic() - start < SECONDS
        assert not any(map(alive, children))
        with pytest.raises(ExecutorError, match="it was not started, or is closed"):
            executor.collective_rpc("echo")


def test_ranks_of_an_engine_without_a_name_are_told_apart_by_its_process() -> None:
    parallel = ParallelConfig(tensor_parallel_size=2)
    title = LocalLauncher(EngineConfig(parallel=parallel), "").title(Rank(1, 2))
    assert title == f"ringline engine pid {os.getpid()} rank tp1/2 pp0/1"


def test_a_grammar_that_is_known_is_refused_once_the_ranks_have_failed() -> None:
    with scripted() as executor:
        executor.require_running()
        executor.fail(ExecutorError("a rank has gone"))
        with pytest.raises(ExecutorError, match="it has failed: a rank has gone"):
            executor.require_running()
    with pytest.raises(ExecutorError, match="is closed"):
        executor.require_running()


def test_a_copy_in_a_forked_process_leaves_the_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted() as executor:
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: 1)
            executor.fail(ExecutorError("no reply"))
            executor.close()
            with pytest.raises(ExecutorError, match="the ranks are those of process"):
                executor.submit(plan(1))
        assert executor.submit(plan(1)).result().step_id == 1


PARENT = """
import os, time
from engine_core.distributed.ranks import Rank
from tests.engine_core.executor.ranks.scripted_rank import ScriptedRank
ranks = [ScriptedRank(Rank(number, 2)) for number in range(2)]
assert ranks[0].connections.signs.recv_bytes() == b"" == ranks[1].connections.signs.recv_bytes()  # they run
os.kill(ranks[1]._process.pid, 19)
print(*(rank._process.pid for rank in ranks), flush=True)
time.sleep(60)
"""


def test_no_rank_outlives_an_engine_that_is_killed_whether_it_runs_or_is_stopped() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        assert all(map(alive, children))
        parent.kill()
    end = time.monotonic() + SECONDS
    while any(map(alive, children)):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_cannot_run_is_refused_by_name() -> None:
    def refused(scheduler: SchedulerConfig | None = None, **options: Any) -> str:
        config = EngineConfig(scheduler=scheduler or SchedulerConfig(), parallel=ParallelConfig(**options))
        with pytest.raises(ConfigError) as caught:
            _ = start_engine(config, StartupProgress()) if scheduler is None else RankWorkers(LocalLauncher(config, ""))
        return str(caught.value)

    assert refused(tensor_parallel_size=2, distributed_executor_backend="uni") == (
        "distributed_executor_backend='uni' is not usable: expected mp or ray for more than one rank; "
        "tensor_parallel_size × pipeline_parallel_size is 2"
    )
    asked = refused(SchedulerConfig(async_scheduling=True), pipeline_parallel_size=2)
    assert asked.startswith("async_scheduling=True is not usable: expected no value with more than one rank")


def test_a_rank_with_another_build_is_named() -> None:
    same = {"torch": "2.11.0", "checkpoint": "aa"}
    require_equal([same, dict(same)], ["rank 0", "rank 1"])
    with pytest.raises(
        ExecutorError, match=r"^rank 1 has another torch than rank 0: 2\.12\.0 and 2\.11\.0\. Give every"
    ):
        require_equal([same, same | {"torch": "2.12.0"}], ["rank 0", "rank 1"])


def test_tokens_keep_their_type() -> None:
    with scripted() as executor:
        executor.submit(plan(5)).result()
        [(step_id, sampled)] = executor._results
        assert (step_id, sampled.dtype, sampled.tolist()) == (5, np.int64, [5, 0])
