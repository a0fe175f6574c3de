"""Engines of two ranks that are killed, and whose ranks are killed or stopped, at any moment: after a second nothing of
them is left. ``KILLS=100`` says how often, for each.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import alive

pytestmark = pytest.mark.distributed

KILLS = int(os.environ.get("KILLS", "10"))
GONE = 1.0
"""Seconds in which nothing of an engine is left."""
START = 120.0
"""Seconds that a start may take on a busy machine."""
ENGINE = """
import sys
from engine_core.llm import LLM, SamplingParams
params = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
options = {"dtype": "float32", "kv_cache_memory_bytes": 16 << 20, "num_threads": 1, sys.argv[2]: 2}
with LLM(sys.argv[1], **options) as llm:
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2))
    print(*(rank.pid for rank in llm._engine.executor.ranks), flush=True)
    while True:
        llm.generate([[5, 6, 7]], params)
"""


class Engine:
    """A process with two ranks, which computes until it ends."""

    def __init__(self, checkpoint: Path, sizes: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(checkpoint), sizes],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ranks: list[int] = []

    def wait_until_it_computes(self) -> None:
        assert self.process.stdout is not None
        self.ranks = [int(pid) for pid in self.process.stdout.readline().split()]
        assert len(self.ranks) == 2, self.end()

    def children(self) -> list[int]:
        own = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in own.split()]

    def gone_after(self, *pids: int) -> float:
        """Seconds until none of ``pids`` runs; more than ``GONE`` if that does not come."""
        start = time.monotonic()
        while any(map(alive, pids)) and time.monotonic() - start < 2 * GONE:
            time.sleep(0.01)
        return time.monotonic() - start

    def end(self) -> str:
        """Kill whatever is left; returns what it wrote to stderr."""
        for pid in [self.process.pid, *self.ranks]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        return self.process.communicate()[1]


def shared_memory() -> list[str]:
    return sorted(path.name for path in Path("/dev/shm").iterdir())


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sizes", ["tensor_parallel_size", "pipeline_parallel_size"])
@pytest.mark.parametrize("kind", ["engine", "rank", "stopped rank"])
def test_nothing_is_left_of_an_engine_that_computes(checkpoint: Path, kind: str, sizes: str) -> None:
    before = shared_memory()
    for _ in range(KILLS):
        engine = Engine(checkpoint, sizes)
        try:
            engine.wait_until_it_computes()
            time.sleep(random.uniform(0.0, 0.3))
            if kind == "engine":
                engine.process.kill()
            else:
                os.kill(random.choice(engine.ranks), signal.SIGKILL if kind == "rank" else signal.SIGSTOP)
            seconds = engine.gone_after(*engine.ranks)
            engine.process.wait(START)  # it has been told; how long Python takes to end is not the executor's
        finally:
            said = engine.end()
        assert seconds < GONE, said
        if kind != "engine":
            assert ("was killed by SIGKILL" if kind == "rank" else "has not beaten") in said
    assert shared_memory() == before


@pytest.mark.timeout(3600)
def test_nothing_is_left_of_an_engine_that_is_killed_while_it_starts(checkpoint: Path) -> None:
    before = shared_memory()
    for _ in range(2 * KILLS):
        engine = Engine(checkpoint, "tensor_parallel_size")
        try:
            end = time.monotonic() + START
            while len(engine.children()) < 2:
                assert time.monotonic() < end
                time.sleep(0.01)
            engine.ranks = engine.children()
            time.sleep(random.uniform(0.0, 5.0))
            engine.process.kill()
            seconds = engine.gone_after(*engine.ranks)
        finally:
            said = engine.end()
        assert seconds < GONE, said
    assert shared_memory() == before
