"""An engine inside its memory, and what its steps wait for. Of no use beside other processes on the same GPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_core.llm import LLM
from engine_core.request import SamplingParams
from tests.gpu.device import needs_card
from tests.gpu.engines import GREEDY, OPTIONS, saved

pytestmark = [pytest.mark.gpu, needs_card]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("qwen3-tied-head-dim", tmp_path_factory.mktemp("one"))


@pytest.fixture
def _synchronizations_warn() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("warn")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("_synchronizations_warn")
def test_launching_a_decoding_step_waits_for_nothing(one: Path) -> None:
    with LLM(str(one), **OPTIONS, async_scheduling=False) as llm:
        counts = []
        for steps in (4, 12):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                llm.generate([[5, 6, 7]] * 3, replace(GREEDY, max_tokens=steps))
            counts.append(sum("synchroniz" in str(warning.message) for warning in caught))
    assert counts[1] == counts[0]


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other processes take memory: run it without -n")
def test_memory_stays_inside_its_budget_and_nothing_is_allocated_after_the_warm_up(one: Path) -> None:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    utilization = 0.25 if free > 0.3 * total else 0.9 * free / total
    options = OPTIONS | {"kv_cache_memory_bytes": None, "gpu_memory_utilization": utilization}
    options |= {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    with LLM(str(one), **options) as llm:
        reserved = torch.cuda.memory_reserved()
        used = free - torch.cuda.mem_get_info()[0]
        assert used <= utilization * total
        random = SamplingParams(temperature=1.0, top_p=0.9, logprobs=5, max_tokens=40, ignore_eos=True)
        llm.generate([list(range(5, 150))] * 300, [GREEDY, random] * 150)
        assert torch.cuda.memory_reserved() == reserved
        assert free - torch.cuda.mem_get_info()[0] <= utilization * total
