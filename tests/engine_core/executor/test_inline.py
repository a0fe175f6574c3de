"""The in-process executor over a real worker: failures are told once and end it."""

from __future__ import annotations

import pytest

from engine_core.config import EngineConfig
from engine_core.errors import ExecutorError, OutOfMemoryError
from engine_core.executor.inline import InlineExecutor
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.request import SamplingParams
from engine_core.step import NewSequence, StepPlan

from ..models.tiny_models import CASES, make_model, save_model


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    path = save_model(make_model(CASES["llama-gqa"]), tmp_path_factory.mktemp("model"))
    return configure(model=str(path), dtype="float32", kv_cache_memory_bytes=4 << 20, max_num_seqs=2)


@pytest.fixture
def executor(config: EngineConfig) -> InlineExecutor:
    executor = InlineExecutor(config)
    executor.start(StartupProgress())
    return executor


def plan_of(seq_id: int, tokens: list[int]) -> StepPlan:
    sequence = NewSequence(seq_id, 0, tokens, len(tokens), 0, [3], SamplingParams(temperature=0.0))
    return StepPlan(7, [], [sequence], [seq_id], [len(tokens)], [True], {})


def test_a_plan_is_answered(executor: InlineExecutor) -> None:
    result = executor.execute(plan_of(1, [5, 6, 7]))
    assert result.step_id == 7
    assert [len(tokens) for tokens in result.token_ids] == [1]
    assert executor.cache_size.num_blocks * executor.cache_size.bytes_per_block <= 4 << 20


def test_a_failed_step_is_told_once_and_ends_it(executor: InlineExecutor) -> None:
    told: list[BaseException] = []
    executor.on_failure(told.append)
    with pytest.raises(ExecutorError, match="step 7 failed: IndexError") as failed:
        executor.execute(plan_of(1, [5, 10**6]))  # a token that no embedding has
    assert told == [failed.value.__cause__]
    with pytest.raises(ExecutorError, match="does not run"):
        executor.execute(plan_of(2, [5]))
    assert len(told) == 1


def test_closing_frees_and_is_idempotent(executor: InlineExecutor) -> None:
    executor.close()
    executor.close()
    with pytest.raises(ExecutorError, match="does not run"):
        executor.execute(plan_of(1, [5]))


def test_a_start_that_fails_leaves_it_closed(config: EngineConfig) -> None:
    executor = InlineExecutor(configure(model=config.model.model, dtype="float32", kv_cache_memory_bytes=1000))
    with pytest.raises(OutOfMemoryError):
        executor.start(StartupProgress())
    with pytest.raises(ExecutorError, match="does not run"):
        executor.execute(plan_of(1, [5]))


@pytest.mark.parametrize("told", [1 << 60, 1 << 70])
def test_a_cache_that_the_system_refuses_is_named(config: EngineConfig, told: int) -> None:
    executor = InlineExecutor(configure(model=config.model.model, dtype="float32", kv_cache_memory_bytes=told))
    with pytest.raises(OutOfMemoryError, match=r"the system refused .* Lower .*--kv-cache-memory-bytes"):
        executor.start(StartupProgress())
