"""Ctrl-C at any moment of an offline call: it is raised, its requests are gone, and the next call is computed right."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from engine_core.engine import EngineCore
from engine_core.executor.collective import CollectiveExecutor
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.llm import LLM, _Live
from engine_core.models.causal_lm import CausalLM
from engine_core.request import SamplingParams
from engine_core.sampling.sampler import Sampler
from engine_core.scheduling.lifecycle import Lifecycle
from engine_core.scheduling.scheduler import Scheduler
from engine_core.worker.input_batch import InputBatch

BOUND = 60.0
"""Seconds that nothing here takes unless it hangs."""
PROMPTS = [[5, 6, 7], [9] * 20, [100 + i for i in range(40)], [3, 4]]
LONG = SamplingParams(max_tokens=400, ignore_eos=True, n=2)
"""Not over before the interrupt."""
SHORT = [SamplingParams(seed=seed, max_tokens=6, ignore_eos=True) for seed in range(len(PROMPTS))]


def start(checkpoint: Path, *, async_scheduling: bool) -> LLM:
    options = {"max_num_batched_tokens": 24, "block_size": 4, "kv_cache_memory_bytes": 1 << 20}
    return LLM(str(checkpoint), dtype="float32", async_scheduling=async_scheduling, **options)


@pytest.fixture(scope="module", params=[False, True], ids=["one step", "overlapping steps"])
def llm(checkpoint: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with start(checkpoint, async_scheduling=request.param) as started:
        yield started


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    with start(checkpoint, async_scheduling=False) as started:
        return tokens(started)


def tokens(llm: LLM) -> list[list[int]]:
    return [result.choices[0].token_ids for result in llm.generate(PROMPTS, SHORT)]


class Interrupts:
    """Ctrl-C at chosen moments, whichever thread comes to them."""

    def __init__(self) -> None:
        self.count = 0
        self._noticed = threading.Condition()

    def handle(self, number: int, frame: FrameType | None) -> None:
        with self._noticed:
            self.count += 1
            self._noticed.notify_all()
        raise KeyboardInterrupt

    def send(self) -> None:
        """Returns when the main thread is being interrupted."""
        already = self.count
        main = threading.main_thread()
        signal.pthread_kill(main.ident, signal.SIGINT)
        if threading.current_thread() is not main:
            with self._noticed:
                assert self._noticed.wait_for(lambda: self.count > already, BOUND)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    sent = Interrupts()
    before = signal.signal(signal.SIGINT, sent.handle)
    yield sent
    signal.signal(signal.SIGINT, before)


def interrupt_at(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: str, turn: int, send: Callable[[], None]
) -> None:
    """Let the ``turn``-th call of a method send an interrupt before it does its work, or after."""
    method, calls = getattr(owner, name), 0

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == turn and when == "before":
            send()
        result = method(*args, **options)
        if calls == turn and when == "after":
            send()
        return result

    monkeypatch.setattr(owner, name, interrupted)


MOMENTS = [
    (EngineCore, "add", 2),
    (EngineCore, "step", 1),
    (Scheduler, "schedule", 2),
    (Lifecycle, "start", 1),
    (KVCacheManager, "admit", 2),
    (KVCacheManager, "grow", 2),
    (KVCacheManager, "publish", 1),
    (CollectiveExecutor, "submit", 1),
    (InputBatch, "update", 2),
    (InputBatch, "prepare", 2),
    (CausalLM, "forward", 2),
    (Sampler, "sample", 2),
    (InputBatch, "commit", 3),
    (Scheduler, "update", 3),
    (_Live, "take", 2),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name", "turn"), MOMENTS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_an_interrupt_leaves_the_engine_empty_and_usable(
    llm: LLM,
    expected: list[list[int]],
    interrupts: Interrupts,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    turn: int,
    when: str,
) -> None:
    with monkeypatch.context() as patched:
        interrupt_at(patched, owner, name, when, turn, interrupts.send)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, LONG)
    assert interrupts.count == 1
    stats = llm.stats()
    assert (stats.running_seqs, stats.waiting_seqs, stats.waiting_reqs, stats.kv_blocks_used) == (0, 0, 0, 0)
    assert tokens(llm) == expected


def test_a_second_interrupt_does_not_wait_for_the_step(
    llm: LLM, expected: list[list[int]], interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step under way still ends before the next call begins."""
    step_may_end = threading.Event()

    def interrupt_twice() -> None:
        interrupts.send()
        interrupts.send()
        assert step_may_end.wait(BOUND)

    with monkeypatch.context() as patched:
        interrupt_at(patched, EngineCore, "step", "after", 2, interrupt_twice)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, LONG)
    step_may_end.set()
    assert tokens(llm) == expected
    assert llm.stats().kv_blocks_used == 0


def test_a_prefix_computed_before_an_interrupt_is_found_after_it(
    llm: LLM, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [150 + i for i in range(16)]
    with monkeypatch.context() as patched:
        interrupt_at(patched, EngineCore, "step", "after", 5, interrupts.send)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([prompt], LONG)
    assert llm.generate([prompt], SHORT[0])[0].cached_tokens == 12
