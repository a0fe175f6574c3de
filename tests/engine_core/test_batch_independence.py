"""A sequence's tokens and log probabilities depend on nothing but its request, to the last bit, in float32.

The same 50 sampled requests are run alone, together, in small chunks, under a cache so small that sequences are
preempted, with steps that overlap, with drafts, and continued from places in the middle.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_core.platforms.cpu import CpuPlatform
from engine_core.request import SamplingParams
from engine_core.scheduling import drafting
from engine_core.startup import StartedEngine
from engine_core.worker.input_batch import Index, InputBatch, StepInputs

from .drafters import ScriptedDrafter
from .engines import BLOCK_BYTES, run, started
from .models.tiny_models import CASES, make_model, save_model
from .sampled_workload import COUNT, VOCAB, WORKLOAD, Streams, begun, streams

TIGHT = {
    "block_size": 4,
    "kv_cache_memory_bytes": 80 * 4 * BLOCK_BYTES * 2 // 16,  # this model has four key-value heads
    "max_model_len": 100,
    "max_num_batched_tokens": 48,
}
"""80 blocks of 4 tokens for what would fill ten times that, and steps of at most 48 tokens."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(CASES["qwen3-mha-biases"]), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[StartedEngine]:
    with started(directory, max_num_seqs=64, max_model_len=100) as started_engine:
        yield started_engine


@pytest.fixture(scope="module")
def together(engine: StartedEngine) -> Streams:
    engine.core.reset_prefix_cache()
    return streams(engine)


def test_the_workload_is_sampled_and_various(together: Streams) -> None:
    """Equal streams would prove little if all ended at once or did not differ from each other."""
    tokens = [tuple(token_ids) for token_ids, _ in together.values()]
    assert len(set(tokens)) == len(tokens) > COUNT
    assert sum(map(len, tokens)) > 10 * len(tokens)
    forced = [
        token_ids[budget.max_tokens]
        for (name, _), (token_ids, _) in together.items()
        if (budget := WORKLOAD.params[name].reasoning_budget) and not budget.opening
    ]
    assert forced == [21] * len(forced)
    assert len(forced) > 10


def test_alone(engine: StartedEngine, together: Streams) -> None:
    for name in list(WORKLOAD.prompts)[::3]:
        engine.core.reset_prefix_cache()
        for key, stream in streams(engine, [name]).items():
            assert stream == together[key]


def test_with_prefix_hits(engine: StartedEngine, together: Streams) -> None:
    before = engine.core.stats().prefix_hit_tokens
    assert streams(engine) == together
    assert engine.core.stats().prefix_hit_tokens > before + 500


@pytest.mark.parametrize("cache_dtype", ["int8", pytest.param("fp8", marks=pytest.mark.wide)])
def test_with_an_8_bit_cache(cache_dtype: str, directory: Path, engine: StartedEngine, together: Streams) -> None:
    """Other numbers than in float32, but the same together, with prefix hits, and in chunks under preemption."""
    names = list(WORKLOAD.prompts)[::5]
    with started(directory, max_num_seqs=64, max_model_len=100, kv_cache_dtype=cache_dtype) as other:
        numerics = other.executor.numerics
        assert numerics != engine.executor.numerics
        whole = streams(other, names)
        assert whole != {key: together[key] for key in whole}
        assert streams(other, names) == whole
        assert other.core.stats().prefix_hit_tokens > 100
    with started(directory, **TIGHT, kv_cache_dtype=cache_dtype) as other:
        assert streams(other, names) == whole
        assert other.executor.numerics == numerics, "an engine whose self-test fails has numerics of its own"


def test_in_small_chunks_under_preemption(directory: Path, engine: StartedEngine, together: Streams) -> None:
    with started(directory, **TIGHT) as other:
        assert streams(other) == together
        assert other.core.stats().preemptions > 0
        assert other.executor.numerics == engine.executor.numerics


def test_with_overlapping_steps(directory: Path, together: Streams) -> None:
    """With room for all, and in small chunks under preemption."""
    for options in ({}, TIGHT):
        with started(directory, async_scheduling=True, **options) as other:
            assert other.executor.max_concurrent_steps == 2
            assert streams(other) == together
            assert bool(other.core.stats().preemptions) == bool(options)
            assert other.core.stats().kv_blocks_used == 0
            resume = begun(together, lambda ids: ids[:3])
            rest = run(other, WORKLOAD.prompts, WORKLOAD.params, resume)
            assert {key: outcome.token_ids for key, outcome in rest.items()} == {
                key: ids[3:] for key, (ids, _) in together.items()
            }


def test_where_steps_are_launched_before_earlier_tokens_are_on_the_host(
    directory: Path, together: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device that computes by itself, where steps overlap by default."""
    monkeypatch.setattr(CpuPlatform, "is_asynchronous", True)
    pending = []

    def count(batch: InputBatch, inputs: StepInputs, previous: StepInputs) -> tuple[Index, Index]:
        rows, indices = original(batch, inputs, previous)
        pending.append(len(rows))
        return rows, indices

    original = InputBatch.pending_tokens
    monkeypatch.setattr(InputBatch, "pending_tokens", count)
    plain = [name for name, params in WORKLOAD.params.items() if not reads_tokens(params)]
    for options in ({}, TIGHT):
        with started(directory, **options) as other:
            assert other.executor.max_concurrent_steps == 2
            assert streams(other, plain) == {key: stream for key, stream in together.items() if key[0] in plain}
            assert sum(pending) > 50
            pending.clear()
            assert streams(other) == together  # some need the tokens on the host, and get them
            assert bool(other.core.stats().preemptions) == bool(options)


def reads_tokens(params: SamplingParams) -> bool:
    """Whether what may be drawn depends on the tokens before."""
    penalties = params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
    words = any(len(word) > 1 for word in params.bad_words_token_ids)
    return bool(penalties or words or params.reasoning_budget)


@pytest.mark.parametrize("way", ["right", "mixed"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_with_drafts(
    way: str, asynchronous: bool, directory: Path, together: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right, wrong and half right ones, some behind the last token: with room for all, and under preemption.

    Wrong ones are computed, too, however often they were wrong.
    """
    monkeypatch.setattr(CpuPlatform, "is_asynchronous", asynchronous)
    if way == "mixed":
        monkeypatch.setattr(drafting, "FREE_ROWS", 1000)
    texts = [[*WORKLOAD.prompts[name], *token_ids] for (name, _), (token_ids, _) in together.items()]
    for options in ({"max_num_seqs": 150}, TIGHT):
        drafter = ScriptedDrafter(lambda: texts, VOCAB, way)
        with started(directory, drafter, **options) as other:
            assert streams(other) == together
            assert other.executor.planned > 200
            assert bool(other.core.stats().preemptions) == ("max_num_seqs" not in options)
            assert other.core.stats().kv_blocks_used == 0


def test_continued_from_any_split(engine: StartedEngine, together: Streams) -> None:
    """Prompt and tokens so far are all it takes: the rest equals what was drawn without interruption."""
    rng = random.Random(4)
    resume = begun(together, lambda ids: ids[: rng.randrange(len(ids))])
    outcomes = run(engine, WORKLOAD.prompts, WORKLOAD.params, resume)
    for (name, choice), (token_ids, logprobs) in together.items():
        done = len(resume[name][choice])
        got = outcomes[name, choice]
        assert got.outputs[0].first_position == done
        assert got.token_ids == token_ids[done:]
        assert got.logprobs == logprobs[done:]
