"""Stages, the size of the KV cache, refusals: what is the same wherever workers run, by one in this process."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from engine_core.config import EngineConfig, ParallelConfig
from engine_core.errors import ConfigError, ExecutorError, OutOfMemoryError
from engine_core.executor.uniproc import UniProcWorker
from engine_core.llm import configure
from engine_core.platforms.cpu import CpuPlatform
from engine_core.progress import StartupProgress
from engine_core.startup import choose_workers, start_executor
from engine_core.step import StepPlan

from .engines import StageDetails


@pytest.fixture(scope="module")
def config(checkpoint: Path) -> EngineConfig:
    return configure(model=str(checkpoint), dtype="float32", kv_cache_memory_bytes=4 << 20, max_num_seqs=2)


def test_the_start_says_which_numerics_it_has_and_what_hashing_took(config: EngineConfig) -> None:
    stages = StageDetails()
    executor = start_executor(choose_workers(config), StartupProgress(stages))
    executor.close()
    expected = rf"numerics {executor.numerics}; hashed in \d+\.\d\d s"
    assert re.fullmatch(expected, stages.details["load weights"])


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, []), ({"top_p": 0.9, "temperature": 0}, ["default sampling: temperature 0, top_p 0.9"])],
)
def test_the_start_says_which_defaults_of_sampling_it_has(
    options: dict[str, float], said: list[str], config: EngineConfig
) -> None:
    stages = StageDetails()
    model = replace(config.model, generation_config="none", override_generation_config=json.dumps(options))
    start_executor(choose_workers(replace(config, model=model)), StartupProgress(stages)).close()
    assert stages.details["configuration"].split("; ")[1:] == said


def test_the_start_recommends_to_convert_files_of_pytorch(config: EngineConfig, tmp_path: Path) -> None:
    """Its numerics are those of the same weights in safetensors."""
    numerics = []
    shutil.copytree(config.model.model, tmp_path, dirs_exist_ok=True)
    for advised in (False, True):
        stages = StageDetails()
        executor = start_executor(
            choose_workers(replace(config, model=replace(config.model, model=str(tmp_path)))), StartupProgress(stages)
        )
        executor.close()
        numerics.append(executor.numerics)
        assert ("save_pretrained of transformers converts" in stages.details["configuration"]) is advised
        if not advised:
            torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
            (tmp_path / "model.safetensors").unlink()
    assert numerics[0] == numerics[1]


def test_a_start_that_fails_leaves_it_closed(config: EngineConfig) -> None:
    workers = choose_workers(configure(model=config.model.model, dtype="float32", kv_cache_memory_bytes=1000))
    with pytest.raises(OutOfMemoryError):
        start_executor(workers, StartupProgress())
    with pytest.raises(ExecutorError, match="does not run"):
        workers.submit(StepPlan(0, [], [], [], [], [], {}))


@pytest.mark.parametrize("told", [1 << 60, 1 << 70])
def test_a_cache_that_the_system_refuses_is_named(config: EngineConfig, told: int) -> None:
    workers = choose_workers(configure(model=config.model.model, dtype="float32", kv_cache_memory_bytes=told))
    with pytest.raises(OutOfMemoryError, match=r"the system refused .* Lower --kv-cache-memory-bytes\.$"):
        start_executor(workers, StartupProgress())


def test_a_cache_that_was_measured_and_that_the_system_refuses_is_named(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuPlatform, "allocate", Mock(side_effect=RuntimeError("no room")))
    workers = choose_workers(configure(model=config.model.model, dtype="float32", max_num_batched_tokens=32))
    with pytest.raises(OutOfMemoryError, match=r"no room\. Lower --gpu-memory-utilization, or set --kv-cache-memory"):
        start_executor(workers, StartupProgress())


def test_a_step_too_small_for_whole_prompts_is_refused_before_weights_are_read(config: EngineConfig) -> None:
    options = {"enable_chunked_prefill": False, "max_num_batched_tokens": 1, "max_model_len": 64}
    stages = StageDetails()
    refusal = r"=1 is not usable: expected at least --max-model-len \(64\) with --no-enable-chunked-prefill$"
    with pytest.raises(ConfigError, match=refusal):
        start_executor(choose_workers(configure(model=config.model.model, **options)), StartupProgress(stages))
    assert list(stages.details) == ["configuration"]


def test_each_worker_gets_as_many_blocks_as_the_one_with_the_least_room(config: EngineConfig) -> None:
    class TwoWorkers(UniProcWorker):
        """The second worker, made up, has a cache of blocks twice as large."""

        def collective_rpc(self, method: str, *arguments: object, **options: object) -> list[object]:
            if method == "join":
                return []
            [result] = super().collective_rpc(method, *arguments, **options)
            other = replace(result, bytes_per_block=2 * result.bytes_per_block) if method == "load_model" else result
            return [result, other]

    several = replace(config, parallel=ParallelConfig(pipeline_parallel_size=2))
    alone, two = (start_executor(each, StartupProgress()) for each in (UniProcWorker(config), TwoWorkers(several)))
    alone.close()
    two.close()
    assert two.kv_cache_config.num_blocks == alone.kv_cache_config.num_blocks // 2
    assert two.kv_cache_config.bytes_per_block == alone.kv_cache_config.bytes_per_block
