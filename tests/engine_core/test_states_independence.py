"""Where layers keep states, a sequence's tokens and log probabilities depend on nothing but its request, either.

The requests of ``sampled_workload`` are run alone, together, in chunks of every size, on one thread, with so few blocks
and slots that sequences are preempted, with drafts, and continued from places in the middle.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_core.scheduling import drafting
from engine_core.startup import StartedEngine

from .drafters import ScriptedDrafter
from .engines import run, started
from .models.families import OWN
from .models.tiny_models import make_model, save_model
from .sampled_workload import VOCAB, WORKLOAD, Streams, begun, streams

_ROOM = {"max_num_seqs": 64, "max_model_len": 100, "kv_cache_memory_bytes": 64 << 20}
_LAYERS = [
    "qwen3_5_text",
    "qwen3_next-some-dense-biases-tied-padded",
    "granitemoehybrid-mamba",
    "nemotron_h",
    "mamba2-one-group-biases-limits-tied-padded",
    "lfm2",
    "lfm3",
]
pytestmark = pytest.mark.models


@pytest.fixture(scope="module", params=_LAYERS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(OWN[request.param]), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[StartedEngine]:
    with started(directory, **_ROOM) as started_engine:
        yield started_engine


@pytest.fixture(scope="module")
def together(engine: StartedEngine) -> Streams:
    engine.core.reset_prefix_cache()
    return streams(engine)


def tight(engine: StartedEngine) -> dict[str, object]:
    """About 60 blocks of 4 tokens for what would fill ten times that, 16 slots, and steps of at most 48 tokens."""
    cache = engine.executor.kv_cache_config
    blocks, slots = 60 * cache.bytes_per_block // 4, 16 * cache.bytes_per_state
    return {
        "block_size": 4,
        "kv_cache_memory_bytes": blocks + slots,
        "state_cache_share": min(0.99, slots / (blocks + slots)),
        "max_model_len": 100,
        "max_num_batched_tokens": 48,
    }


def test_alone_and_with_prefix_hits(engine: StartedEngine, together: Streams) -> None:
    for name in list(WORKLOAD.prompts)[::5]:
        engine.core.reset_prefix_cache()
        for key, stream in streams(engine, [name]).items():
            assert stream == together[key]
    engine.core.reset_prefix_cache()
    streams(engine)
    before = engine.core.stats().prefix_hit_tokens
    assert streams(engine) == together
    assert engine.core.stats().prefix_hit_tokens > before + 500


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 16, 17, 64, 512])
def test_in_chunks(rows: int, directory: Path, together: Streams) -> None:
    names = list(WORKLOAD.prompts)[::5]
    with started(directory, **_ROOM | {"max_num_seqs": min(rows, 64)}, max_num_batched_tokens=rows) as other:
        got = streams(other, names)
    assert got == {key: together[key] for key in got}


def test_on_one_thread(directory: Path, together: Streams) -> None:
    with started(directory, **_ROOM, num_threads=1) as other:
        assert streams(other) == together


@pytest.mark.parametrize("asynchronous", [False, True])
def test_with_few_blocks_and_slots(
    asynchronous: bool, directory: Path, engine: StartedEngine, together: Streams
) -> None:
    with started(directory, async_scheduling=asynchronous, **tight(engine)) as other:
        assert streams(other) == together
        stats = other.core.stats()
        assert stats.preemptions > 0 or not stats.kv_blocks
        assert stats.kv_blocks_used == stats.state_slots_used == 0
        assert other.executor.numerics == engine.executor.numerics


@pytest.mark.parametrize("way", ["right", "mixed"])
def test_with_drafts(
    way: str, directory: Path, engine: StartedEngine, together: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "mixed":
        monkeypatch.setattr(drafting, "FREE_ROWS", 1000)
    texts = [[*WORKLOAD.prompts[name], *token_ids] for (name, _), (token_ids, _) in together.items()]
    for options in (_ROOM | {"max_num_seqs": 150}, tight(engine)):
        drafter = ScriptedDrafter(lambda: texts, VOCAB, way)
        with started(directory, drafter, **options) as other:
            assert streams(other) == together
            assert other.executor.planned > 20
            assert other.core.stats().state_slots_used == 0


def test_continued_from_any_split(engine: StartedEngine, together: Streams) -> None:
    rng = random.Random(4)
    for _ in range(3):
        resume = begun(together, lambda ids: ids[: rng.randrange(len(ids))])
        outcomes = run(engine, WORKLOAD.prompts, WORKLOAD.params, resume)
        for (name, choice), (token_ids, logprobs) in together.items():
            done, got = len(resume[name][choice]), outcomes[name, choice]
            assert got.token_ids == token_ids[done:]
            assert got.logprobs == logprobs[done:]
