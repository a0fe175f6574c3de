"""A model that drafts changes no token; and one that is the target itself proposes exactly what will be drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from engine_core.engine import EngineCore
from engine_core.errors import ConfigError
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.startup import StartedEngine, start_engine

from ...drafters import ProposingExecutor
from ...engines import started
from ...models.tiny_models import CASES, SIZES, make_model, save_model
from ...sampled_workload import Streams, streams
from ...test_forced_tokens import PARAMS, TINY, Answers, answers


def drafting_by(model: Path) -> str:
    return json.dumps({"method": "draft_model", "model": str(model)})


@dataclass
class Proposing:
    engine: StartedEngine
    executor: ProposingExecutor


@contextmanager
def proposing(model: Path, drafts_by: Path, count: int = 4, **options: object) -> Iterator[Proposing]:
    """An engine that speculates wherever it can."""
    options = {"dtype": "float32", "kv_cache_memory_bytes": 16 << 20, "num_threads": 1, **options}
    config = configure(model=str(model), speculative_config=drafting_by(drafts_by), **options)
    engine = start_engine(config, StartupProgress())
    executor = ProposingExecutor(engine.executor, count)
    try:
        yield Proposing(replace(engine, core=EngineCore(config, executor), executor=executor), executor)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model, of the vocabulary of the tiny Llama."""
    directory = tmp_path_factory.mktemp("smaller")
    return save_model(make_model(LlamaConfig(**(SIZES | {"num_hidden_layers": 1})), seed=3), directory)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> Streams:
    with started(checkpoint) as engine:
        return streams(engine)


OPTIONS: dict[str, dict[str, object]] = {
    "alone": {},
    "chunks": {"max_num_batched_tokens": 64, "max_num_seqs": 32},
    "preemption": {"block_size": 4, "kv_cache_memory_bytes": 1_000_000},
    "overlapping": {"async_scheduling": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_target_drafts_for_itself_without_a_mistake(
    checkpoint: Path, expected: Streams, options: dict[str, object]
) -> None:
    """At every temperature, with penalties, top-k, top-p, bans, budgets of reasoning and rules against loops."""
    with proposing(checkpoint, checkpoint, **options) as found:
        assert streams(found.engine) == expected
        assert found.executor.planned > 300
        assert found.executor.accepted == found.executor.planned


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_drafts_of_another_model_change_nothing(
    checkpoint: Path, smaller: Path, expected: Streams, options: dict[str, object]
) -> None:
    with proposing(checkpoint, smaller, 3, **options) as found:
        assert streams(found.engine) == expected
        assert 0 < found.executor.accepted < found.executor.planned


def test_drafts_follow_grammars() -> None:
    """The bundled model drafts for itself: its drafts are masked as its tokens are."""
    with started(TINY, num_threads=1, max_model_len=200) as engine:
        undrafted: Answers = answers(engine)
    with proposing(TINY, TINY, max_model_len=200) as found:
        assert answers(found.engine) == undrafted
        assert set(PARAMS) == {name for name, _ in undrafted}
        assert found.executor.accepted == found.executor.planned > 300
