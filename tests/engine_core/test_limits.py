"""Every limit of size at its edges: an engine serves requests of the longest kind, or says which option to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_core.errors import EngineError, OutOfMemoryError
from engine_core.llm import LLM, configure
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.platforms.kv_cache_size import RESERVE_BYTES, MemoryProfile
from engine_core.progress import StartupProgress
from engine_core.request import SamplingParams
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.worker import Worker

from .engines import BLOCK_BYTES, StageDetails

LENGTH = 64
PROFILED = {"kv_cache_memory_bytes": None}
NO_CHUNKS = {"enable_chunked_prefill": False}

GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
DEMANDING = SamplingParams(n=2, max_tokens=3, seed=1, top_p=0.9, logprobs=1, prompt_logprobs=1, ignore_eos=True)


def start(checkpoint: Path, options: dict[str, Any]) -> LLM:
    usual = {"dtype": "float32", "max_model_len": LENGTH, "kv_cache_memory_bytes": 64 * BLOCK_BYTES}
    return LLM(str(checkpoint), **(usual | options))


@pytest.mark.parametrize(
    "options",
    [
        *({"max_model_len": length} for length in (2, 7, 16, 17, 37, 512)),
        *({"max_model_len": length, **PROFILED} for length in (2, 36, 512)),
        *({"block_size": size} for size in (1, 17, 64, 65, 1024)),
        *({"block_size": size, **PROFILED} for size in (1, 37, 1024)),
        *({"max_num_seqs": seqs} for seqs in (1, 2, 2**16)),
        *({"max_num_batched_tokens": tokens} for tokens in (1, 2, 37, 64, 65, 2**20)),
        *({"max_num_batched_tokens": tokens, **PROFILED} for tokens in (1, 37, 2**20)),
        *({"max_num_batched_tokens": tokens, **NO_CHUNKS} for tokens in (64, 65)),
        {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_num_queued_reqs": 1, "block_size": 1, "max_model_len": 2},
        {"max_num_queued_reqs": 2**20},
        {"kv_cache_memory_bytes": 4 * BLOCK_BYTES},
        {"kv_cache_memory_bytes": 5 * BLOCK_BYTES - 1},
        {"gpu_memory_utilization": 1.0, **PROFILED},
        {"num_threads": 1},
        {"load_format": "dummy", "seed": 2**64 - 1},
    ],
    ids=str,
)
def test_an_engine_serves_at_the_edges(options: dict[str, Any], checkpoint: Path) -> None:
    with start(checkpoint, {"max_num_seqs": 4, **options}) as llm:
        longest = llm.model.max_model_len
        prompts = [[5] * (longest - 1), [7] * max(1, longest // 2), [3]]
        results = llm.generate(prompts, GREEDY)
        room = [longest - len(prompt) for prompt in prompts]
        assert [len(result.choices[0].token_ids) for result in results] == [min(LENGTH, left) for left in room]
        for result, left in zip(llm.generate(prompts, DEMANDING), room, strict=True):
            assert [len(choice.logprobs) for choice in result.choices] == [min(3, left)] * 2
        assert llm.stats().kv_blocks_used == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_model_len": 513}, "max_model_len=513 is not usable: expected at most 512"),
        ({"max_num_batched_tokens": 63, **NO_CHUNKS}, r"max_num_batched_tokens=63 .* at least --max-model-len \(64\)"),
        ({"kv_cache_memory_bytes": 1}, "--kv-cache-memory-bytes is 1 .1 byte.*Raise --kv-cache-memory-bytes"),
        (
            {"kv_cache_memory_bytes": 4 * BLOCK_BYTES - 1},
            "^max_model_len=64 does not fit.*4 blocks of 16 tokens.*lower --max-model-len to at most 48",
        ),
        ({"kv_cache_memory_bytes": 2**70}, "Lower .*--kv-cache-memory-bytes"),
        (
            {"gpu_memory_utilization": 0.01, **PROFILED},
            "for the KV cache: .* 0.01 .*Raise --gpu-memory-utilization",
        ),
    ],
    ids=str,
)
def test_what_no_engine_can_serve_names_the_option(options: dict[str, Any], words: str, checkpoint: Path) -> None:
    with pytest.raises(EngineError, match=words):
        start(checkpoint, options)


def test_a_batch_that_no_address_space_holds_names_the_options(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(model=str(checkpoint), kv_cache_memory_bytes=64 * BLOCK_BYTES, max_num_seqs=4)
    worker = Worker(config, open_checkpoint(config.model, config.load))
    worker.init_device()
    worker.load_model(lambda done, total: None)
    worker.limits = BatchLimits(2**16, 2048, 2**40, 1)
    with pytest.raises(OutOfMemoryError, match=r"65536 sequences .* Lower --max-num-seqs or --max-model-len"):
        worker.profile()


def test_what_requests_may_hold_is_of_the_budget(checkpoint: Path) -> None:
    config = configure(model=str(checkpoint), dtype="float32", max_model_len=LENGTH)
    worker = Worker(config, open_checkpoint(config.model, config.load))
    worker.init_device()
    worker.load_model(lambda done, total: None)
    profile, usable = worker.profile(), worker.device.usable
    assert isinstance(profile, MemoryProfile)
    for share in (0.05, 0.9):
        room = worker.device.request_memory(share)
        taken = profile.resident + profile.step_peak + profile.batch_state + RESERVE_BYTES
        assert profile.left(share) == int(share * usable) - taken - room.logprob_bytes - room.id_bytes
        assert 0 < room.logprob_bytes + room.id_bytes <= share * usable / 16
    worker.close()


def test_a_profiled_cache_is_said_to_be_addresses_alone(checkpoint: Path) -> None:
    details = []
    for options in ({}, PROFILED):
        stages = StageDetails()
        start(checkpoint, {**options, "progress": StartupProgress(stages)}).close()
        details.append(stages.details["allocate KV cache"])
    assert [detail.endswith("memory is taken as the cache fills") for detail in details] == [False, True]


def test_only_a_profiled_cache_is_still_to_be_taken_and_its_largest_step_known(checkpoint: Path) -> None:
    """One of a size that was told is in memory at the start. What guards the memory must not count it twice."""
    with start(checkpoint, {}) as told, start(checkpoint, PROFILED) as profiled:
        assert (told._engine.executor.unwritten_cache_bytes, told._engine.executor.step_bytes) == (0, 0)
        executor = profiled._engine.executor
        size = executor.kv_cache_config
        assert executor.unwritten_cache_bytes == size.num_blocks * size.bytes_per_block
        assert executor.step_bytes > 0
