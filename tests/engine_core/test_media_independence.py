"""Whole engines with pictures: what they put out depends on no neighbour, chunk, cached prefix or rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine_core.config import LoadConfig, ModelConfig, ParallelConfig
from engine_core.engine import EngineCore
from engine_core.errors import ConfigError
from engine_core.llm import configure
from engine_core.media import MediaItem, Picture
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.progress import StartupProgress
from engine_core.request import Request, SamplingParams
from engine_core.startup import start_executor
from engine_core.worker.worker import batch_limits
from tests.engine_core.engines import Outcome, started
from tests.engine_core.executor.threaded_workers import ThreadedWorkers
from tests.engine_core.pictures import make_multimodal, picture, prompt_of, seeing

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
RANDOM = SamplingParams(seed=3, max_tokens=8, ignore_eos=True, n=3, logprobs=1)


def request(name: str, params: SamplingParams, *parts: int | Picture) -> Request:
    ids, found = prompt_of(*parts)
    return Request(name, tuple(ids), params, media=tuple(MediaItem(each, offset) for each, offset in found))


REQUESTS = [
    request("two pictures", GREEDY, 5, picture(1, 3, 4), 6, picture(2, 4, 2), 9),
    request("text", GREEDY, 30),
    request("choices", RANDOM, 3, picture(3, 4, 6), 4),
    request("as before", GREEDY, 5, picture(1, 3, 4), 6, picture(2, 4, 2), 20),
    request("another picture", GREEDY, 5, picture(4, 3, 4), 6, picture(2, 4, 2), 20),
    request("picture first", RANDOM, picture(5, 1, 5), 40, picture(3, 4, 6), 2),
]
Said = dict[tuple[str, int], object]


def run(core: EngineCore, requests: list[Request], cached: dict[str, int] | None = None) -> Said:
    """Tokens and log probabilities of all choices; in ``cached``, of how many tokens keys and values were there."""
    outcomes: dict[tuple[str, int], Outcome] = {}
    for each in requests:
        core.add(each)
    while core.has_work():
        for output in core.step():
            outcomes.setdefault((output.request_id, output.choice), Outcome()).outputs.append(output)
            if cached is not None and output.cached_tokens is not None:
                cached[output.request_id] = output.cached_tokens
    return {choice: (outcome.token_ids, outcome.logprobs) for choice, outcome in outcomes.items()}


@pytest.fixture(scope="module")
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    _, directory = make_multimodal(request.param, tmp_path_factory.mktemp("model"))
    with seeing():
        yield directory


@pytest.fixture(scope="module")
def alone(directory: Path) -> Said:
    """Each request by itself."""
    said: Said = {}
    with started(directory, num_threads=1, enable_prefix_caching=False) as engine:
        for each in REQUESTS:
            said |= run(engine.core, [each])
    return said


FAMILIES = [
    "Qwen3VLForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    pytest.param("Qwen2_5_VLForConditionalGeneration", marks=pytest.mark.models),
    pytest.param("Idefics3ForConditionalGeneration", marks=pytest.mark.models),
]


@pytest.mark.parametrize("directory", FAMILIES, indirect=True)
def test_neighbours_chunks_and_prefixes_change_nothing(directory: Path, alone: Said) -> None:
    with started(directory, num_threads=2, max_num_batched_tokens=32, block_size=8) as engine:
        assert run(engine.core, REQUESTS) == alone
        cached: dict[str, int] = {}
        assert run(engine.core, REQUESTS, cached) == alone
        assert sum(cached.values()) > 100  # a part of a picture whose tokens see all of it is never reused
    assert alone["as before", 0] != alone["another picture", 0]


@contextmanager
def on_ranks(directory: Path, **options: object) -> Iterator[EngineCore]:
    """An engine of several ranks, each a thread of this process; its cache is sized by a profile."""
    options = {"max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 32, **options}
    config = configure(model=str(directory), dtype="float32", num_threads=1, **options)
    executor = start_executor(ThreadedWorkers(config), StartupProgress())
    try:
        yield EngineCore(config, executor)
    finally:
        executor.close()


@pytest.mark.parametrize("directory", FAMILIES, indirect=True)
def test_two_ranks_share_every_layer_and_encode_the_same(directory: Path, alone: Said) -> None:
    with on_ranks(directory, tensor_parallel_size=2) as core:
        assert run(core, REQUESTS) == alone


DEEP: dict[str, object] = {"num_hidden_layers": 6, "layer_types": ["full_attention"] * 6}


@pytest.mark.parametrize(
    "architecture",
    ["Qwen3VLForConditionalGeneration", pytest.param("Gemma3ForConditionalGeneration", marks=pytest.mark.models)],
)
def test_only_the_first_stage_encodes(architecture: str, tmp_path: Path) -> None:
    make_multimodal(architecture, tmp_path, **DEEP)
    options: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    with seeing():
        with started(tmp_path, num_threads=1, **options) as engine:
            expected = run(engine.core, REQUESTS)
        with on_ranks(tmp_path, pipeline_parallel_size=2) as core:
            assert run(core, REQUESTS) == expected


def test_features_of_pictures_need_their_layers_in_the_first_stage(tmp_path: Path) -> None:
    make_multimodal("Qwen3VLForConditionalGeneration", tmp_path)
    refusal = "^pipeline_parallel_size=3 is not usable: expected fewer stages, as features of pictures are added after"
    with seeing(), pytest.raises(ConfigError, match=refusal):
        open_checkpoint(ModelConfig(model=str(tmp_path)), LoadConfig(), ParallelConfig(pipeline_parallel_size=3))


def test_a_step_too_small_for_a_picture_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    make_multimodal("Gemma3ForConditionalGeneration", tmp_path)
    config = configure(model=str(tmp_path), max_num_batched_tokens=16)
    with seeing():
        checkpoint = open_checkpoint(config.model, config.load)
        with pytest.raises(ConfigError, match=r"^max_num_batched_tokens=16 .* at least 24, the tokens of this model's"):
            batch_limits(config, checkpoint)
