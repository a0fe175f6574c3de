"""A row's tokens and log probabilities depend on its own adapter alone, to the last bit, whatever is beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_core.lora.adapter import open_adapter
from engine_core.lora.request import RequestAdapter
from engine_core.request import Request, SamplingParams
from engine_core.scheduling import drafting
from engine_core.startup import StartedEngine
from tests.engine_core.engines import Outcome, started
from tests.engine_core.lora.test_parity import adapt, prompt
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model

MANY = 63
TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=24, ignore_eos=True, logprobs=2, prompt_logprobs=1)
Stream = tuple[object, ...]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and many adapters of other ranks and targets beside it."""
    directory = tmp_path_factory.mktemp("adapters")
    base = make_model(configuration("qwen3-padded"), seed=3)
    save_model(base, directory / "base")
    adapt(base, directory / "0", 0, target_modules=list(TARGETS))
    for number in range(1, 1 + MANY):
        vary(directory / "0", directory / str(number), 1 + number % 9, number)
    return directory


def vary(original: Path, path: Path, rank: int, seed: int) -> None:
    """Another adapter at ``path``, of random numbers, that changes fewer layers."""
    config = json.loads((original / "adapter_config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, tensor in load_file(original / "adapter_model.safetensors").items():
        if TARGETS[seed % len(TARGETS)] not in name:
            rows, columns = tensor.shape
            shape = (rank, columns) if "lora_A" in name else (rows, rank)
            tensors[name] = torch.randn(shape, generator=generator) * 0.2
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({**config, "r": rank}))
    save_file(tensors, path / "adapter_model.safetensors")


def load(engine: StartedEngine, checkpoint: Path, numbers: range) -> dict[int, RequestAdapter]:
    """Adapters by number; an adapter's id is its number."""
    lora = engine.executor.lora
    assert lora is not None
    loaded = {}
    for number in numbers:
        path = checkpoint / str(number)
        digest = open_adapter(path, lora.targets, lora.limits).digest
        engine.executor.load_adapter(number, str(path), digest)
        loaded[number] = RequestAdapter(number, digest)
    return loaded


def streams(engine: StartedEngine, requests: Mapping[str, Request]) -> dict[str, Stream]:
    outcomes = {name: Outcome() for name in requests}
    for request in requests.values():
        engine.core.add(request)
    while engine.core.has_work():
        for output in engine.core.step():
            outcomes[output.request_id].outputs.append(output)
    return {name: (tuple(each.token_ids), each.logprobs, scores(each)) for name, each in outcomes.items()}


def scores(outcome: Outcome) -> list[object]:
    """Of the prompt's tokens."""
    return [entry for output in outcome.outputs for entry in output.prompt_logprobs or ()]


def request(name: str, adapter: RequestAdapter | None, length: int = 21) -> Request:
    return Request(name, tuple(prompt(length)), PARAMS, adapter=adapter)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[StartedEngine]:
    options = {"enable_lora": True, "max_loras": 64, "max_num_seqs": 128, "enable_prefix_caching": False}
    with started(checkpoint / "base", kv_cache_memory_bytes=64 << 20, max_model_len=100, **options) as one:
        yield one


@pytest.fixture(scope="module")
def adapters(engine: StartedEngine, checkpoint: Path) -> dict[int, RequestAdapter]:
    return load(engine, checkpoint, range(1 + MANY))


@pytest.fixture(scope="module")
def alone(engine: StartedEngine, adapters: dict[int, RequestAdapter]) -> dict[str, Stream]:
    """One request with an adapter, and one without, each by itself."""
    own = streams(engine, {"adapted": request("adapted", adapters[0])})
    plain = streams(engine, {"plain": request("plain", None)})
    assert own["adapted"] != plain["plain"]
    return own | plain


def test_beside_63_rows_of_63_other_adapters(
    engine: StartedEngine, adapters: dict[int, RequestAdapter], alone: dict[str, Stream]
) -> None:
    beside = {str(number): request(str(number), adapters[number], 5 + number % 30) for number in range(1, 1 + MANY)}
    both = {"adapted": request("adapted", adapters[0]), "plain": request("plain", None)}
    together = streams(engine, {**beside, **both})
    assert {name: together[name] for name in alone} == alone
    assert len({stream[0] for stream in together.values()}) > MANY // 2


def test_beside_rows_without_adapters(
    engine: StartedEngine, adapters: dict[int, RequestAdapter], alone: dict[str, Stream]
) -> None:
    beside = {str(number): request(str(number), None, 5 + number) for number in range(20)}
    together = streams(engine, {**beside, "adapted": request("adapted", adapters[0])})
    assert together["adapted"] == alone["adapted"]
    assert together["16"] == streams(engine, {"16": request("16", None, 21)})["16"] == alone["plain"]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_with_other_numbers_of_threads(
    num_threads: int, engine: StartedEngine, adapters: dict[int, RequestAdapter], alone: dict[str, Stream]
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert streams(engine, {"adapted": request("adapted", adapters[0])})["adapted"] == alone["adapted"]
    finally:
        torch.set_num_threads(before)


def test_in_chunks_after_preemption_and_with_prefix_hits(checkpoint: Path, alone: dict[str, Stream]) -> None:
    """Steps of eight tokens, in a cache that does not hold all sequences to their ends."""
    tight = {"block_size": 4, "max_num_batched_tokens": 8, "max_num_seqs": 8, "kv_cache_memory_bytes": 160 << 10}
    with started(checkpoint / "base", enable_lora=True, max_model_len=64, **tight) as small:
        adapters = load(small, checkpoint, range(4))
        requests = {str(number): request(str(number), adapters[1 + number % 3]) for number in range(6)}
        for _ in range(2):
            found = streams(
                small, {**requests, "adapted": request("adapted", adapters[0]), "plain": request("plain", None)}
            )
            for name, stream in alone.items():
                assert found[name][0] == stream[0]
        stats = small.core.stats()
        assert stats.preemptions > 0
        assert stats.prefix_hit_tokens == 0  # prompts are scored, so none may be skipped
        unscored = {
            name: replace(each, request_id=name, params=replace(PARAMS, prompt_logprobs=None))
            for name, each in {"adapted": request("", adapters[0]), "plain": request("", None)}.items()
        }
        for _ in range(2):
            found = streams(small, unscored)
            assert {name: each[:2] for name, each in found.items()} == {name: each[:2] for name, each in alone.items()}
        assert small.core.stats().prefix_hit_tokens > 0


def test_blocks_are_shared_within_an_adapter_alone(engine: StartedEngine, checkpoint: Path) -> None:
    with started(checkpoint / "base", enable_lora=True, max_model_len=100) as caching:
        adapters = load(caching, checkpoint, range(2))
        params = replace(PARAMS, prompt_logprobs=None)
        for adapter in (None, adapters[0], adapters[1]):
            before = caching.core.stats().prefix_hit_tokens
            first = Request("first", tuple(prompt(40)), params, adapter=adapter)
            streams(caching, {"first": first})
            assert caching.core.stats().prefix_hit_tokens == before
            streams(caching, {"first": first})
            assert caching.core.stats().prefix_hit_tokens > before


def test_resumed_in_the_middle(
    engine: StartedEngine, adapters: dict[int, RequestAdapter], alone: dict[str, Stream]
) -> None:
    tokens, _, _ = alone["adapted"]
    assert isinstance(tokens, tuple)
    for done in (1, 17):
        resumed = replace(request("adapted", adapters[0]), resume={0: tokens[:done]})
        assert streams(engine, {"adapted": resumed})["adapted"][0] == tokens[done:]


def test_with_drafts(
    checkpoint: Path,
    engine: StartedEngine,
    adapters: dict[int, RequestAdapter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts are the text's own; whether they come true, the adapter says."""
    monkeypatch.setattr(drafting, "FREE_ROWS", 1000)
    greedy = replace(PARAMS, temperature=0.0, max_tokens=70, prompt_logprobs=None)

    def asked(known: Mapping[int, RequestAdapter]) -> dict[str, Request]:
        return {str(number): replace(request(str(number), known.get(number)), params=greedy) for number in range(3)}

    config = {"method": "ngram", "num_speculative_tokens": 3}
    options = {"enable_lora": True, "max_num_seqs": 8, "max_model_len": 100, "kv_cache_memory_bytes": 16 << 20}
    with started(checkpoint / "base", speculative_config=config, **options) as other:
        found = streams(other, asked(load(other, checkpoint, range(2))))
        drafted = other.core.stats()
    assert found == streams(engine, asked({number: adapters[number] for number in range(2)}))
    assert drafted.accepted_draft_tokens > 0


@pytest.mark.distributed
@pytest.mark.parametrize(
    "ranks",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ],
    ids=str,
)
def test_with_ranks(ranks: Mapping[str, object], checkpoint: Path, alone: dict[str, Stream]) -> None:
    options = {"enable_lora": True, "max_num_seqs": 8, "max_model_len": 100, "num_threads": 1, **ranks}
    with started(checkpoint / "base", kv_cache_memory_bytes=8 << 20, **options) as several:
        adapters = load(several, checkpoint, range(3))
        requests = {str(number): request(str(number), adapters[number]) for number in (1, 2)}
        both = {"adapted": request("adapted", adapters[0]), "plain": request("plain", None)}
        found = streams(several, {**requests, **both})
        assert {name: found[name] for name in alone} == alone
        several.executor.unload_adapter(1)
        assert streams(several, {"adapted": request("adapted", adapters[0])})["adapted"] == alone["adapted"]


@pytest.mark.distributed
@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["embed_tokens", "lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ],
    ids=["ranks", "weights"],
)
def test_tables_of_an_adapter_with_ranks(fields: Mapping[str, object], tmp_path: Path) -> None:
    base = make_model(configuration("llama-gqa"), seed=3)
    save_model(base, tmp_path / "base")
    adapt(base, tmp_path / "0", 1, **fields)
    found = []
    options = {"enable_lora": True, "max_loras": 64, "max_model_len": 100, "num_threads": 1}
    for ranks in (1, 2):
        with started(tmp_path / "base", tensor_parallel_size=ranks, **options) as engine:
            adapters = load(engine, tmp_path, range(1))
            both = {"adapted": request("adapted", adapters[0]), "plain": request("plain", None)}
            found.append(streams(engine, both))
    assert found[0] == found[1]
    assert found[0]["adapted"] != found[0]["plain"]
