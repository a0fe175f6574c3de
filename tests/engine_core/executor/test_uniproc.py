"""The in-process executor over a real worker: failures are told once and end it, in whichever thread steps run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine_core.config import EngineConfig
from engine_core.errors import ExecutorError
from engine_core.executor.collective import CollectiveExecutor
from engine_core.progress import StartupProgress
from engine_core.request import SamplingParams
from engine_core.startup import choose_workers, start_executor
from engine_core.step import NewSequence, StepPlan, StepResult
from engine_core.worker.worker import Worker


def plan_of(seq_id: int, tokens: list[int]) -> StepPlan:
    sequence = NewSequence(seq_id, 0, tokens, len(tokens), 0, [[3]], SamplingParams(temperature=0.0))
    return StepPlan(7, [], [sequence], [seq_id], [len(tokens)], [True], {})


@pytest.fixture
def overlapped(config: EngineConfig) -> Iterator[CollectiveExecutor]:
    asked = replace(config, scheduler=replace(config.scheduler, async_scheduling=True))
    executor = start_executor(choose_workers(asked), StartupProgress())
    yield executor
    executor.close()


def test_steps_overlap_with_their_submitter_if_asked_for(
    overlapped: CollectiveExecutor, executor: CollectiveExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (executor.max_concurrent_steps, overlapped.max_concurrent_steps) == (1, 2)
    go_on, computed = threading.Event(), []

    def wait(plan: StepPlan) -> SimpleNamespace:
        assert go_on.wait(30)
        computed.append(plan.step_id)
        return SimpleNamespace(result=lambda: StepResult(plan.step_id, []))

    monkeypatch.setattr(Worker, "launch", lambda _, plan: wait(plan))
    pending = [overlapped.submit(replace(plan_of(1, [5]), step_id=step)) for step in range(2)]
    assert computed == []
    go_on.set()
    assert [each.result().step_id for each in pending] == computed == [0, 1]


@pytest.mark.parametrize("kind", ["executor", "overlapped"])
def test_a_failed_step_is_told_once_and_no_step_behind_it_is_computed(
    kind: str, request: pytest.FixtureRequest
) -> None:
    failing: CollectiveExecutor = request.getfixturevalue(kind)
    told: list[BaseException] = []
    failing.on_failure(told.append)
    # A token that no embedding has. Where steps overlap, another one is submitted before that is known.
    results = [
        lambda: failing.submit(plan_of(1, [5, 10**6])).result(),
        lambda: failing.submit(plan_of(2, [5])).result(),
    ]
    if kind == "overlapped":
        results = [failing.submit(plan).result for plan in (plan_of(1, [5, 10**6]), plan_of(2, [5]))]
    with pytest.raises(ExecutorError, match="step 7 failed: IndexError") as failed:
        results[0]()
    with pytest.raises(ExecutorError, match="does not run"):
        results[1]()
    assert told == [failed.value]
    assert isinstance(failed.value.__cause__, IndexError)
    failing.close()
    with pytest.raises(ExecutorError, match="does not run"):
        failing.submit(plan_of(2, [5]))


def test_closing_waits_for_the_steps_that_were_submitted(overlapped: CollectiveExecutor) -> None:
    pending = [overlapped.submit(plan_of(seq_id, [5, 6])) for seq_id in (1, 2)]
    overlapped.close()
    assert [len(each.result().token_ids) for each in pending] == [1, 1]
    assert "steps" not in [thread.name for thread in threading.enumerate()]


def test_an_adapter_is_kept_for_the_steps_that_were_submitted(
    overlapped: CollectiveExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, done = threading.Event(), list[str]()

    def wait(plan: StepPlan) -> SimpleNamespace:
        assert go_on.wait(30)
        done.append(f"step {plan.step_id}")
        return SimpleNamespace(result=lambda: StepResult(plan.step_id, []))

    monkeypatch.setattr(Worker, "launch", lambda _, plan: wait(plan))
    monkeypatch.setattr(Worker, "unload_adapter", lambda _, adapter_id: done.append(f"unload {adapter_id}"))
    pending = [overlapped.submit(replace(plan_of(1, [5]), step_id=step)) for step in range(2)]
    overlapped.unload_adapter(3)
    pending.append(overlapped.submit(replace(plan_of(1, [5]), step_id=2)))
    assert done == []
    go_on.set()
    for each in pending:
        each.result()
    assert done == ["step 0", "step 1", "unload 3", "step 2"]
