"""A model on two ranks, each in a process of its own: the same answers, a start that shows the ranks, a clean end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from engine_core import request
from engine_core.config import DeviceConfig, EngineConfig, ParallelConfig
from engine_core.distributed.ranks import ranks_on_one_host
from engine_core.errors import ConfigError, InvalidRequestError
from engine_core.executor.ranks import local
from engine_core.llm import LLM, SamplingParams, configure
from engine_core.progress import StartupProgress
from engine_core.startup import choose_workers
from tests.processes import alive

from ...engines import StageDetails, run, started
from ...structured_output.grammars import PERSON, save_model_with_tokenizer, text_of

OPTIONS = {"dtype": "float32", "kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 4, "num_threads": 1}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=1.0, seed=4, n=2, repetition_penalty=1.3, max_tokens=6, ignore_eos=True),
]
PROMPTS = [[5, 6, 7], list(range(10, 60)), [9, 9]]


IN_GRAMMAR = request.SamplingParams(grammar=PERSON, max_tokens=60)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model_with_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stages() -> StageDetails:
    return StageDetails()


@pytest.fixture(scope="module")
def ranks(checkpoint: Path, stages: StageDetails) -> Iterator[LLM]:
    with LLM(checkpoint, tensor_parallel_size=2, progress=StartupProgress(stages), **OPTIONS) as llm:  # type: ignore[arg-type]
        pids = [each.pid for each in llm._engine.executor.ranks]
        yield llm
    assert not any(map(alive, pids))


def test_answers_are_those_of_one_process(ranks: LLM, checkpoint: Path) -> None:
    with LLM(checkpoint, **OPTIONS) as alone:  # type: ignore[arg-type]
        assert ranks.generate(PROMPTS, PARAMS) == alone.generate(PROMPTS, PARAMS)
        assert (ranks.numerics, ranks.model_digest) == (alone.numerics, alone.model_digest)
        assert ranks.model.num_parameters == alone.model.num_parameters > 0


def test_grammars_are_compiled_here_and_on_the_rank_that_samples(ranks: LLM, checkpoint: Path) -> None:
    params = {name: replace(IN_GRAMMAR, temperature=heat) for name, heat in {"greedy": 0.0, "random": 1.0}.items()}
    prompts = dict.fromkeys(params, PROMPTS[0])
    executor = ranks._engine.executor
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(executor.compile_grammar, [f'start: "{each}"' for each in "abcdefgh"] + [PERSON] * 4))
    with pytest.raises(InvalidRequestError, match="grammar: 1\\(9\\): Expected token"):
        executor.compile_grammar("start: (")
    outcomes = run(ranks._engine, prompts, params)
    with started(checkpoint, **OPTIONS) as alone:
        expected = run(alone, prompts, params)
    for key, outcome in outcomes.items():
        assert outcome.token_ids == expected[key].token_ids
        assert re.fullmatch(r'\{"name": "[a-z]{1,8}", "age": [0-9]{1,3}\}', text_of(outcome.token_ids))


def test_workers_of_all_ranks_are_called(ranks: LLM) -> None:
    assert ranks.collective_rpc("lacks_kernels") == [False, False]
    whole, part = ranks.collective_rpc("profile", timeout=60.0)
    assert type(whole) is type(part)
    assert len(ranks.generate(PROMPTS[0], PARAMS[0])) == 1


def test_the_start_names_ranks(ranks: LLM, stages: StageDetails) -> None:
    first, second = ranks._engine.executor.ranks
    assert (first.rank, second.rank) == ("tp0/2 pp0/1", "tp1/2 pp0/1")
    where = f"rank tp0/2 pp0/1: pid {first.pid} on {first.host}, rank tp1/2 pp0/1: pid {second.pid} on {second.host}"
    assert stages.details["start ranks"] == where
    assert stages.details["device"].startswith("each of 2 ranks: cpu, ")
    assert list(stages.details)[:5] == ["configuration", "start ranks", "device", "join ranks", "load weights"]


def test_what_the_cache_takes_is_not_this_processs(ranks: LLM) -> None:
    executor = ranks._engine.executor
    assert (executor.unwritten_cache_bytes, executor.step_bytes) == (0, 0)


def test_more_ranks_than_processors_are_refused_unless_threads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "usable_cpus", lambda: 3)
    parallel = ParallelConfig(tensor_parallel_size=2, pipeline_parallel_size=2)
    refusal = r"^tensor_parallel_size=2 is not usable: expected at most one rank for each of 3 usable processors, "
    with pytest.raises(ConfigError, match=refusal):
        local.require_room(EngineConfig(device=DeviceConfig(device="cpu"), parallel=parallel))
    local.require_room(EngineConfig(device=DeviceConfig(device="cpu", num_threads=1), parallel=parallel))


def test_engines_of_one_machine_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "usable_cpus", lambda: 3)
    refusal = (
        r"^data_parallel_size=2 is not usable: expected at most one rank for each of 3 usable processors, .*4 ranks"
    )
    parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=2)
    with pytest.raises(ConfigError, match=refusal):
        local.require_room(EngineConfig(device=DeviceConfig(device="cpu"), parallel=parallel))
    with pytest.raises(ConfigError, match=r"^data_parallel_size=4 is not usable"):
        choose_workers(configure(model="m", device="cpu", data_parallel_size=4))
    with pytest.raises(
        ConfigError, match=r"^data_parallel_rank=2 is not usable: expected less than data_parallel_size=2"
    ):
        choose_workers(configure(model="m", data_parallel_size=2, data_parallel_rank=2))


def test_each_engine_of_a_machine_has_cores_memory_and_gpus_of_its_own() -> None:
    ranks = [
        ranks_on_one_host(ParallelConfig(tensor_parallel_size=2, data_parallel_size=3, data_parallel_rank=number))
        for number in range(3)
    ]
    assert [rank.local for engine in ranks for rank in engine] == [0, 1, 2, 3, 4, 5]
    assert {rank.ranks_on_host for engine in ranks for rank in engine} == {6}
    assert [rank.number for rank in ranks[2]] == [0, 1]


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = EngineConfig(device=DeviceConfig(device="cuda"), parallel=ParallelConfig(tensor_parallel_size=2))
    with pytest.raises(ConfigError, match="at most one rank for each of 1 GPUs; "):
        local.require_room(config)
