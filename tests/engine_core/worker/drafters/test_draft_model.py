"""A model that drafts changes no token; and one that is the target itself proposes exactly what will be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ...engines import speculating, started
from ...models.tiny_models import save_model
from ...sampled_workload import WORKLOAD, Streams, streams
from ...test_forced_tokens import TINY, Answers, answers


def drafting_by(model: Path, count: int = 4) -> dict[str, object]:
    return {"method": "draft_model", "model": str(model), "num_speculative_tokens": count}


@pytest.fixture(scope="module")
def smaller(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama without its last layer."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    model.model.layers = model.model.layers[:-1]
    model.config.num_hidden_layers -= 1
    return save_model(model, tmp_path_factory.mktemp("smaller"))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> Streams:
    with started(checkpoint) as engine:
        return streams(engine, NAMES)


NAMES = [*WORKLOAD.prompts][:16]
SIZE: dict[str, object] = {"kv_cache_memory_bytes": 16 << 20, "num_threads": 1}
OPTIONS: dict[str, dict[str, object]] = {
    "alone": {},
    "chunks": {"max_num_batched_tokens": 64},
    "preemption": {"block_size": 4, "kv_cache_memory_bytes": 800_000},
    "overlapping": {"async_scheduling": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_target_drafts_for_itself_without_a_mistake(
    checkpoint: Path, expected: Streams, options: dict[str, object]
) -> None:
    """At every temperature, with penalties, top-k, top-p, bans, budgets of reasoning and rules against loops."""
    with speculating(checkpoint, drafting_by(checkpoint), **SIZE | options) as found:
        assert streams(found.engine, NAMES) == expected
    assert found.executor.accepted == found.executor.planned > 150


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_drafts_of_another_model_change_nothing(
    checkpoint: Path, smaller: Path, expected: Streams, options: dict[str, object]
) -> None:
    with speculating(checkpoint, drafting_by(smaller, 3), **SIZE | options) as found:
        assert streams(found.engine, NAMES) == expected
    assert 10 < found.executor.accepted < found.executor.planned


def test_drafts_follow_grammars() -> None:
    """The bundled model drafts for itself: its drafts are masked as its tokens are."""
    sizes: dict[str, object] = {"num_threads": 1, "max_model_len": 200}
    with started(TINY, **sizes) as engine:
        undrafted: Answers = answers(engine)
    with speculating(TINY, drafting_by(TINY), **sizes) as found:
        assert answers(found.engine) == undrafted
    assert found.executor.accepted == found.executor.planned > 300
