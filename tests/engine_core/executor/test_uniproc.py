"""The in-process executor over a real worker: failures are told once and end it, in whichever thread steps run."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import NoReturn

import pytest

from engine_core.config import EngineConfig
from engine_core.errors import ConfigError, ExecutorError, OutOfMemoryError
from engine_core.executor.collective import _described
from engine_core.executor.uniproc import UniProcExecutor
from engine_core.executor.worker import Worker
from engine_core.kv_cache_interface import KVCacheConfig, group_layers
from engine_core.llm import configure
from engine_core.platforms.cpu import CpuPlatform
from engine_core.progress import StartupProgress
from engine_core.request import SamplingParams
from engine_core.step import NewSequence, StepPlan, StepResult

from ..models.tiny_models import CASES, make_model, save_model


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    path = save_model(make_model(CASES["llama-gqa"]), tmp_path_factory.mktemp("model"))
    return configure(model=str(path), dtype="float32", kv_cache_memory_bytes=4 << 20, max_num_seqs=2)


@pytest.fixture
def executor(config: EngineConfig) -> UniProcExecutor:
    executor = UniProcExecutor(config)
    executor.start(StartupProgress())
    return executor


def plan_of(seq_id: int, tokens: list[int]) -> StepPlan:
    sequence = NewSequence(seq_id, 0, tokens, len(tokens), 0, [[3]], SamplingParams(temperature=0.0))
    return StepPlan(7, [], [sequence], [seq_id], [len(tokens)], [True], {})


def test_a_plan_is_answered(executor: UniProcExecutor) -> None:
    result = executor.submit(plan_of(1, [5, 6, 7])).result()
    assert result.step_id == 7
    assert [len(tokens) for tokens in result.token_ids] == [1]
    assert executor.kv_cache_config.num_blocks * executor.kv_cache_config.bytes_per_block <= 4 << 20


def test_the_start_says_which_numerics_it_has_and_what_hashing_took(config: EngineConfig) -> None:
    details: dict[str, str] = {}
    observer = SimpleNamespace(
        stage_started=lambda stage: None,
        stage_advanced=lambda stage, done, total: None,
        stage_finished=lambda stage: details.update({stage.name: stage.detail}),
    )
    executor = UniProcExecutor(config)
    executor.start(StartupProgress(observer))
    executor.close()
    expected = rf"numerics {executor.numerics}; hashed in \d+\.\d\d s"
    assert re.fullmatch(expected, details["load weights"])


def test_a_failed_step_is_told_once_and_ends_it(executor: UniProcExecutor) -> None:
    told: list[BaseException] = []
    executor.on_failure(told.append)
    with pytest.raises(ExecutorError, match="step 7 failed: IndexError") as failed:
        executor.submit(plan_of(1, [5, 10**6])).result()  # a token that no embedding has
    assert told == [failed.value]
    assert isinstance(failed.value.__cause__, IndexError)
    with pytest.raises(ExecutorError, match="does not run"):
        executor.submit(plan_of(2, [5])).result()
    assert len(told) == 1


@pytest.fixture
def overlapped(config: EngineConfig) -> Iterator[UniProcExecutor]:
    executor = UniProcExecutor(replace(config, scheduler=replace(config.scheduler, async_scheduling=True)))
    executor.start(StartupProgress())
    yield executor
    executor.close()


def test_steps_overlap_with_their_submitter_if_asked_for(
    overlapped: UniProcExecutor, executor: UniProcExecutor, monkeypatch: pytest.MonkeyPatch
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


def test_a_failed_step_is_told_once_and_the_step_behind_it_is_not_computed(overlapped: UniProcExecutor) -> None:
    told: list[BaseException] = []
    overlapped.on_failure(told.append)
    first, second = overlapped.submit(plan_of(1, [5, 10**6])), overlapped.submit(plan_of(2, [5]))
    with pytest.raises(ExecutorError, match="step 7 failed: IndexError") as failed:
        first.result()
    with pytest.raises(ExecutorError, match="does not run"):
        second.result()
    assert told == [failed.value]
    assert isinstance(failed.value.__cause__, IndexError)
    overlapped.close()
    with pytest.raises(ExecutorError, match="does not run"):
        overlapped.submit(plan_of(2, [5]))


def test_closing_waits_for_the_steps_that_were_submitted(overlapped: UniProcExecutor) -> None:
    pending = [overlapped.submit(plan_of(seq_id, [5, 6])) for seq_id in (1, 2)]
    overlapped.close()
    assert [len(each.result().token_ids) for each in pending] == [1, 1]
    assert "steps" not in [thread.name for thread in threading.enumerate()]


def test_closing_frees_and_is_idempotent(executor: UniProcExecutor) -> None:
    executor.close()
    executor.close()
    with pytest.raises(ExecutorError, match="does not run"):
        executor.submit(plan_of(1, [5])).result()


def test_a_start_that_fails_leaves_it_closed(config: EngineConfig) -> None:
    executor = UniProcExecutor(configure(model=config.model.model, dtype="float32", kv_cache_memory_bytes=1000))
    with pytest.raises(OutOfMemoryError):
        executor.start(StartupProgress())
    with pytest.raises(ExecutorError, match="does not run"):
        executor.submit(plan_of(1, [5])).result()


@pytest.mark.parametrize("told", [1 << 60, 1 << 70])
def test_a_cache_that_the_system_refuses_is_named(config: EngineConfig, told: int) -> None:
    executor = UniProcExecutor(configure(model=config.model.model, dtype="float32", kv_cache_memory_bytes=told))
    with pytest.raises(OutOfMemoryError, match=r"the system refused .* Lower --kv-cache-memory-bytes\.$"):
        executor.start(StartupProgress())


def test_a_cache_that_was_measured_and_that_the_system_refuses_is_named(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("no room")

    monkeypatch.setattr(CpuPlatform, "allocate", refuse)
    executor = UniProcExecutor(configure(model=config.model.model, dtype="float32", max_num_batched_tokens=32))
    with pytest.raises(OutOfMemoryError, match=r"no room\. Lower --gpu-memory-utilization, or set --kv-cache-memory"):
        executor.start(StartupProgress())


def test_a_step_too_small_for_whole_prompts_is_refused_before_weights_are_read(config: EngineConfig) -> None:
    options = {"enable_chunked_prefill": False, "max_num_batched_tokens": 1, "max_model_len": 64}
    started: list[str] = []
    observer = SimpleNamespace(
        stage_started=lambda stage: started.append(stage.name), stage_finished=lambda stage: None
    )
    refusal = r"=1 is not usable: expected at least --max-model-len \(64\) with --no-enable-chunked-prefill$"
    with pytest.raises(ConfigError, match=refusal):
        UniProcExecutor(configure(model=config.model.model, **options)).start(StartupProgress(observer))
    assert started == ["configuration"]


@pytest.mark.parametrize(
    ("windows", "described"),
    [
        ((None, None), "9 blocks of 4: 36 tokens"),
        ((20, 20, 20), "9 blocks of 4 tokens, each for one group of layers: 1 group of 3 layers over a window of 20"),
        (
            (20, None, 20, 20),
            "9 blocks of 4 tokens, each for one group of layers: "
            "3 groups of 1 layer over a window of 20, 1 group of 1 layer over all tokens",
        ),
    ],
)
def test_equal_groups_of_layers_are_described_once(windows: tuple[int | None, ...], described: str) -> None:
    assert _described(KVCacheConfig(9, 4, 1, group_layers(windows))) == described


def test_an_executor_that_dies_while_idle_says_so_once(executor: UniProcExecutor) -> None:
    told: list[BaseException] = []
    executor.on_failure(told.append)
    for _ in range(2):
        executor.fail(ExecutorError("a worker has gone"))
    assert [str(error) for error in told] == ["a worker has gone"]
    with pytest.raises(ExecutorError, match="it has failed"):
        executor.submit(plan_of(1, [5]))


def test_each_worker_gets_as_many_blocks_as_the_one_with_the_least_room(config: EngineConfig) -> None:
    class TwoWorkers(UniProcExecutor):
        """The second worker, made up, has a cache of blocks twice as large."""

        def collective_rpc(self, method: str, *arguments: object) -> list[object]:
            [result] = super().collective_rpc(method, *arguments)
            other = replace(result, bytes_per_block=2 * result.bytes_per_block) if method == "load_model" else result
            return [result, other]

    alone, two = UniProcExecutor(config), TwoWorkers(config)
    for executor in (alone, two):
        executor.start(StartupProgress())
        executor.close()
    assert two.kv_cache_config.num_blocks == alone.kv_cache_config.num_blocks // 2
    assert two.kv_cache_config.bytes_per_block == alone.kv_cache_config.bytes_per_block
