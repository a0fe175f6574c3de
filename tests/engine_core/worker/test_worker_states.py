"""Engines of models whose layers keep states, with and without attention: tokens are those of transformers, however
prompts are chunked and cached, sequences preempted, and layers divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import Lfm2Config, PreTrainedModel

from engine_core.engine import EngineCore
from engine_core.errors import ConfigError
from engine_core.kernels.library import load_kernels
from engine_core.kv_cache_interface import NO_STATE, KVCacheConfig
from engine_core.llm import configure
from engine_core.ops.native import NativeBackend
from engine_core.ops.states import StateOps
from engine_core.progress import StartupProgress
from engine_core.request import Request, SamplingParams
from engine_core.startup import Startup, start_engine, start_executor
from engine_core.states.base import LayerState, StateMetadata
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.self_test import is_bitwise_stable
from tests.engine_core.drafters import ScriptedDrafter
from tests.engine_core.engines import Outcome, StageDetails, started
from tests.engine_core.executor.threaded_workers import ThreadedWorkers
from tests.engine_core.models.driver import CPU, build_model, chosen_attention, open_at
from tests.engine_core.models.tiny_models import SIZES, make_model, save_model

KINDS = {
    "hybrid": ["conv", "conv", "full_attention", "conv"],
    "conv-only": ["conv", "conv", "conv"],
}
PROMPTS = [[3 + (7 * at + 5 * place) % 120 for place in range(2 + 11 * at)] for at in range(5)]
REQUESTS = [
    *(
        Request(f"r{at}", tuple(prompt), SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))
        for at, prompt in enumerate(PROMPTS)
    ),
    Request("several", tuple(PROMPTS[3]), SamplingParams(seed=2, max_tokens=12, ignore_eos=True, n=3, logprobs=2)),
    Request("scored", tuple(PROMPTS[4]), SamplingParams(temperature=0.0, max_tokens=9, prompt_logprobs=1)),
    Request("again", tuple(PROMPTS[4] + [9, 8, 7]), SamplingParams(temperature=0.0, max_tokens=25, ignore_eos=True)),
]
Said = dict[tuple[str, int], tuple[object, ...]]


def config(kind: str) -> Lfm2Config:
    sizes = SIZES | {"num_hidden_layers": len(KINDS[kind])}
    return Lfm2Config(**sizes, layer_types=KINDS[kind], conv_L_cache=4, block_auto_adjust_ff_dim=False)


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def model(kind: str) -> PreTrainedModel:
    return make_model(config(kind))


@pytest.fixture(scope="module")
def directory(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(model, tmp_path_factory.mktemp("model"))


def run(core: EngineCore) -> Said:
    """Tokens, log probabilities and ends of all choices."""
    outcomes: dict[tuple[str, int], Outcome] = {}
    for request in REQUESTS:
        core.add(request)
    while core.has_work():
        for output in core.step():
            outcomes.setdefault((output.request_id, output.choice), Outcome()).outputs.append(output)
    return {
        choice: (
            outcome.token_ids,
            outcome.logprobs,
            [entry for output in outcome.outputs for entry in output.prompt_logprobs or ()],
            outcome.outputs[-1].finish,
        )
        for choice, outcome in outcomes.items()
    }


@pytest.fixture(scope="module")
def plain(directory: Path) -> Said:
    """Whole prompts, and no cached prefix."""
    with started(directory, enable_prefix_caching=False, num_threads=1) as engine:
        return run(engine.core)


@contextmanager
def slots(count: int, blocks: int | None = None) -> Iterator[None]:
    """Executors that start meanwhile have that many slots for states, and blocks besides those of the longest."""
    sized = Startup._size_cache

    def size_cache(self: Startup, models: Any, limits: BatchLimits, device: Any) -> tuple[KVCacheConfig, int]:
        found, step_bytes = sized(self, models, limits, device)
        spare = found.num_blocks if blocks is None else limits.max_blocks_per_seq + blocks
        return replace(found, num_states=count, num_blocks=min(found.num_blocks, spare)), step_bytes

    with mock.patch.object(Startup, "_size_cache", size_cache):
        yield


def test_tokens_are_those_of_transformers(model: PreTrainedModel, plain: Said) -> None:
    for at, prompt in enumerate(PROMPTS):
        tokens, *_ = plain[f"r{at}", 0]
        assert isinstance(tokens, list)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens[:-1]]]), use_cache=False).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == tokens


@pytest.mark.parametrize(
    ("options", "few"),
    [
        ({"max_num_batched_tokens": 13, "block_size": 4}, {"count": 40}),
        (
            {"max_num_batched_tokens": 16, "block_size": 4, "max_num_seqs": 6, "max_model_len": 96},
            {"count": 7, "blocks": 9},
        ),
        ({"max_num_seqs": 4}, {"count": 3}),
    ],
    ids=["in chunks", "preempted", "one at a time"],
)
def test_they_stay_the_same(directory: Path, plain: Said, options: dict[str, Any], few: dict[str, int]) -> None:
    with slots(**few), started(directory, num_threads=1, **options) as engine:
        assert run(engine.core) == plain
        assert run(engine.core) == plain, "now from snapshots"


def test_so_they_do_with_drafts(directory: Path, plain: Said) -> None:
    texts = [
        [*next(each.prompt_token_ids for each in REQUESTS if each.request_id == name), *tokens]  # type: ignore[misc]
        for (name, _), (tokens, *_) in plain.items()
    ]
    drafter = ScriptedDrafter(lambda: iter(texts), 199, "half")
    with started(directory, drafter, num_threads=1, block_size=4) as engine:
        assert run(engine.core) == plain


@pytest.mark.parametrize("stages", [2, 3])
def test_so_they_do_in_stages(directory: Path, plain: Said, stages: int) -> None:
    """A stage may have no layer that attends, or all of them."""
    options = {"dtype": "float32", "max_num_batched_tokens": 32, "max_model_len": 128, "max_num_seqs": 8}
    workers = ThreadedWorkers(
        configure(model=str(directory), pipeline_parallel_size=stages, num_threads=1, **options), None
    )
    executor = start_executor(workers, StartupProgress())
    try:
        assert executor.kv_cache_config.num_states == 4 * 8 + 10
        assert run(EngineCore(workers.config, executor)) == plain
    finally:
        executor.close()


def test_what_states_take_is_said_at_the_start(directory: Path) -> None:
    stages = StageDetails()
    options = {"dtype": "float32", "max_num_seqs": 3, "max_model_len": 64, "num_threads": 1}
    engine = start_engine(configure(model=str(directory), **options), StartupProgress(stages))
    try:
        cache = engine.executor.kv_cache_config
        assert cache.num_states == 3 * 4 + 10
        assert cache.bytes_per_state == 3 * 3 * 64 * 4, "three inputs of 64 channels in three layers"
        assert ("StateCacheSpec" in cache.layout, "AttentionSpec" in cache.layout) == (True, bool(cache.groups))
    finally:
        engine.close()
    told = stages.details["allocate KV cache"]
    assert "22 states of 2.25 KiB (--state-cache-share): " in told
    assert told.endswith("memory is taken as the cache fills")
    assert "results do not depend on what else is in the batch" in stages.details["warm up"]


@pytest.mark.parametrize("kind", ["conv-only"], indirect=True)
def test_a_type_of_a_cache_that_there_is_not_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_dtype.* expected auto for a model without attention"):
        start_engine(configure(model=str(directory), kv_cache_dtype="int8"), StartupProgress())


class Off(StateOps):
    """Makes one mistake."""

    def __init__(self, mistake: str) -> None:
        self._mistake = mistake

    def short_convolution(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        state: LayerState,
        metadata: StateMetadata,
        **options: Any,
    ) -> torch.Tensor:
        if self._mistake == "forgets":
            metadata = replace(metadata, sources=torch.full_like(metadata.sources, NO_STATE))
        elif self._mistake == "saves late":
            lasts = metadata.query_starts[1:].repeat_interleave(metadata.save_starts.diff()) - 1
            metadata = replace(metadata, save_rows=lasts)
        elif self._mistake == "mixes slots":
            metadata = replace(metadata, sources=metadata.sources.max().expand_as(metadata.sources))
        return super().short_convolution(x, weight, bias, state, metadata, **options)


@pytest.mark.parametrize("mistake", ["none", "forgets", "saves late", "mixes slots"])
def test_the_self_test_finds_states_that_depend_on_the_step(mistake: str, directory: Path) -> None:
    class Layers(NativeBackend):
        def state_ops(self) -> StateOps:  # type: ignore[override]  # not native
            return Off(mistake)

    checkpoint = open_at(directory, dtype="float32")
    model, attention = build_model(checkpoint, Layers(load_kernels())), chosen_attention()
    limits = BatchLimits(1, 1, checkpoint.spec.max_model_len, 16)
    assert is_bitwise_stable(model.one_layer_of_each_kind(), attention, limits, CPU) == (mistake == "none")
