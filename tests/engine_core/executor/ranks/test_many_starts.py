"""Engines of two ranks that start while other processes keep the machine busy, and end with whoever drops them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from engine_core.llm import LLM, SamplingParams
from tests.processes import alive
from tests.ring import MODEL

pytestmark = pytest.mark.distributed

STARTS = 20
BUSY = 2
PROMPT = [5, 6, 7]


@pytest.fixture
def _busy_machine() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(BUSY)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("_busy_machine")
def test_every_start_succeeds_and_nothing_is_left() -> None:
    """Each profiles, with all that a sampler can be asked for: ranks share the logits of that step, too."""
    params, answers = SamplingParams(seed=1, max_tokens=4, ignore_eos=True), []
    for _ in range(STARTS):
        llm = LLM(str(MODEL), tensor_parallel_size=2, num_threads=1)
        pids = [each.pid for each in llm._engine.executor.ranks]
        answers += llm.generate(PROMPT, params)
        del llm
        assert len(pids) == 2
        assert not any(map(alive, pids))
    assert answers == [answers[0]] * STARTS
