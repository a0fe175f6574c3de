"""What the largest step is said to take, on a clock that only what is computed moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from engine_core.attention.base import AttentionMetadata
from engine_core.forward_context import Caches
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.llm import configure
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.platforms.cuda import CudaPlatform
from engine_core.step import NewSequence, StepPlan
from engine_core.worker.dummy_batches import GREEDY
from engine_core.worker.worker import Worker

TINY = Path(__file__).resolve().parents[3] / "checkpoints" / "tiny"
ROWS, LENGTH, BLOCK = 32, 2048, 16
LARGEST_STEP_FACTOR = 5
"""An engine in a step is left alone for that many times its estimate."""


class Clock:
    """A microsecond for each pair of a row and a token that it sees; nothing else takes any time."""

    def __init__(self) -> None:
        self.now = 0.0

    def attended(self, metadata: AttentionMetadata) -> None:
        rows, lengths = metadata.query_starts.diff().tolist(), metadata.seq_lens.tolist()
        self.now += sum(count * length for count, length in zip(rows, lengths, strict=True)) * 1e-6


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


@pytest.fixture
def loaded(clock: Clock) -> Iterator[tuple[Worker, KVCacheConfig]]:
    """A worker with attention in Python, which the clock can see, and the size of its cache."""
    options = {"max_num_batched_tokens": ROWS, "max_num_seqs": 4, "block_size": BLOCK, "attention_backend": "torch"}
    config = configure(model=str(TINY), max_model_len=LENGTH, num_threads=1, **options)
    worker = Worker(config, open_checkpoint(config.model, config.load))
    worker.init_device()
    attention: Any = worker.device.attention
    forward = attention.forward

    def timed(*args: Any) -> torch.Tensor:
        clock.attended(args[4])
        output: torch.Tensor = forward(*args)
        return output

    attention.forward = timed
    model = worker.load_model(lambda done, total: None)
    yield worker, KVCacheConfig(LENGTH // BLOCK, BLOCK, model.bytes_per_block)
    worker.close()


@pytest.mark.parametrize("profiled", [True, False])
def test_a_chunk_behind_a_long_cached_prefix_is_within_the_estimate(
    profiled: bool, loaded: tuple[Worker, KVCacheConfig], clock: Clock
) -> None:
    worker, size = loaded
    if profiled:
        worker.profile()
    worker.allocate(size)
    ready = worker.warm_up(size)
    prompt = [0] * (LENGTH - 1)
    new = NewSequence(9, 0, prompt, len(prompt), len(prompt) - ROWS, [list(range(LENGTH // BLOCK))], GREEDY)
    start = clock.now
    worker.launch(StepPlan(0, [], [new], [9], [ROWS], [True], {})).result()
    took = clock.now - start
    assert took > 0
    assert took <= ready.largest_step_seconds <= LARGEST_STEP_FACTOR * took


class Gpu(CudaPlatform):
    """One whose layers take two seconds each, and embedding, head and sampler together three."""

    def __init__(self, clock: Clock) -> None:
        self._limits, self._eager, self._clock = SimpleNamespace(block_size=BLOCK), True, clock  # type: ignore[assignment]

    def make_runner(self, model: Any, batch: Any) -> Any:
        forward = Mock(side_effect=lambda *args: self._pass(2.0))
        runner: Any = SimpleNamespace(forward=forward, samples=True)

        def launch(plan: StepPlan, caches: Caches) -> Any:
            runner.forward(None, caches, None, None)
            self._pass(3.0)
            return SimpleNamespace(result=lambda: None)

        runner.launch = launch
        return runner

    def _pass(self, seconds: float) -> None:
        self._clock.now += seconds


def test_the_largest_step_of_a_gpu_is_of_all_layers(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("engine_core.platforms.cuda.largest_step", lambda *args: None)
    monkeypatch.setattr("engine_core.platforms.cuda.TorchOps", SimpleNamespace(rows_at_once=lambda vocab: 1))
    kinds = [[0, *range(2, 28)], [1]]
    model: Any = SimpleNamespace(
        vocab_size=1,
        lora=None,
        with_layers=lambda indices: None,
        layers_by_kind=lambda: kinds,
        cache_of_layers=range(28),
        state_of_layers=[None] * 28,
    )
    gpu = Gpu(clock)
    gpu.prepare(SimpleNamespace(model=model), lambda: None, Caches([None] * 28))  # type: ignore[arg-type, return-value, list-item]
    assert gpu.largest_step_seconds == 28 * 2.0 + 3.0
