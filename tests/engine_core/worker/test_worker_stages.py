"""Engines of several stages, linked by gloo: what they put out is what one process does, however steps overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from transformers import LlamaConfig

from engine_core.engine import EngineCore
from engine_core.executor.collective import CollectiveExecutor
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.request import Request, SamplingParams
from engine_core.sampling.base import SamplingOps
from engine_core.sampling.metadata import SamplingMetadata
from engine_core.sampling.sampler import Sampler
from engine_core.startup import start_executor
from tests.engine_core.drafters import DraftingExecutor, ScriptedDrafter
from tests.engine_core.engines import Outcome, started
from tests.engine_core.executor.small_caches import blocks_to_spare
from tests.engine_core.executor.threaded_workers import ThreadedWorkers
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import SIZES, make_model, save_model

FAMILIES = {
    "llama": LlamaConfig(**(SIZES | {"num_hidden_layers": 4}), tie_word_embeddings=True),
    "gemma4": configuration("gemma4_text-everything-padded"),
}
PROMPTS = [[3 + (7 * at + 5 * place) % 120 for place in range(3 + 13 * at)] for at in range(7)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=25, ignore_eos=True, prompt_logprobs=1),
    SamplingParams(seed=2, max_tokens=20, ignore_eos=True, n=2, logprobs=2),
    SamplingParams(seed=3, max_tokens=15, presence_penalty=0.7, repetition_penalty=1.3),
    SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, min_tokens=4, logprobs=0),
    SamplingParams(seed=5, max_tokens=20, ignore_eos=True, n=3, top_k=20, top_p=0.8),
    SamplingParams(temperature=0.0, max_tokens=9, bad_words_token_ids=((5,), (7, 9)), prompt_logprobs=0),
]
REQUESTS = [
    *(
        Request(f"r{at}", tuple(prompt), params)
        for at, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True))
    ),
    Request("again", tuple(PROMPTS[5]), PARAMS[0]),
]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(FAMILIES[request.param]), tmp_path_factory.mktemp(request.param))


@contextmanager
def in_stages(
    directory: Path,
    stages: int,
    drafter: ScriptedDrafter | None = None,
    spare_blocks: int | None = None,
    tensor_transport: str | None = None,
    **options: object,
) -> Iterator[tuple[EngineCore, CollectiveExecutor]]:
    options = {"dtype": "bfloat16", "kv_cache_memory_bytes": 4 << 20, "max_num_batched_tokens": 32} | options
    config = configure(model=str(directory), pipeline_parallel_size=stages, num_threads=1, **options)
    workers = ThreadedWorkers(config, tensor_transport)
    with blocks_to_spare(spare_blocks):
        executor = start_executor(workers, StartupProgress())
    try:
        yield EngineCore(config, executor if drafter is None else DraftingExecutor(executor, drafter)), executor
    finally:
        executor.close()


def run(core: EngineCore) -> dict[object, object]:
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
def whole(directory: Path) -> tuple[dict[object, object], str]:
    """What one process puts out, and its numerics."""
    with started(directory, dtype="bfloat16", max_num_batched_tokens=32, num_threads=1) as engine:
        return run(engine.core), engine.executor.numerics


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_put_out_what_one_process_does(directory: Path, whole: tuple[object, str], stages: int) -> None:
    with in_stages(directory, stages) as (core, executor):
        assert executor.max_concurrent_steps == stages
        assert executor.numerics == whole[1]
        assert run(core) == whole[0]
        assert core.stats().preemptions == 0


@pytest.mark.parametrize("stages", [pytest.param(2, marks=pytest.mark.wide), 3])
def test_so_they_do_when_sequences_are_preempted(directory: Path, whole: tuple[object, str], stages: int) -> None:
    """The cache is sized by a profile that each stage makes by itself, and then cut."""
    options = {"kv_cache_memory_bytes": None, "max_model_len": 128, "max_num_seqs": 8, "block_size": 4}
    with in_stages(directory, stages, spare_blocks=4, **options) as (core, _):
        assert run(core) == whole[0]
        assert core.stats().preemptions > 0


def test_so_they_do_with_drafts(directory: Path, whole: tuple[dict[object, object], str]) -> None:
    texts = [
        [*next(each.prompt_token_ids for each in REQUESTS if each.request_id == name), *tokens]
        for (name, _), (tokens, *_) in whole[0].items()  # type: ignore[misc, has-type]
    ]
    with in_stages(directory, 2, ScriptedDrafter(lambda: iter(texts), 199, "half")) as (core, _):
        assert run(core) == whole[0]


@pytest.mark.parametrize("directory", ["llama"], indirect=True)  # the other has no heads for two ranks
@pytest.mark.parametrize(
    ("stages", "tensor_transport"), [pytest.param(1, "gloo", marks=pytest.mark.wide), (2, None), (2, "gloo")]
)
def test_so_do_the_ranks_of_stages(
    directory: Path,
    whole: tuple[object, str],
    stages: int,
    tensor_transport: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ranks share each layer, over memory or over gloo; one of all has a sampler, also in a profile."""
    sampling = set[int]()

    class Noted(Sampler):
        def __init__(self, metadata: SamplingMetadata, ops: SamplingOps) -> None:
            sampling.add(threading.get_ident())
            super().__init__(metadata, ops)

    monkeypatch.setattr("engine_core.platforms.cpu.Sampler", Noted)
    options: dict[str, object] = {"tensor_parallel_size": 2, "tensor_transport": tensor_transport}
    if tensor_transport is None:
        options |= {"kv_cache_memory_bytes": None, "max_num_seqs": 8, "spare_blocks": 99}
    with in_stages(directory, stages, **options) as (core, executor):  # type: ignore[arg-type]
        assert executor.numerics == whole[1]
        assert run(core) == whole[0]
    assert len(sampling) == 1
