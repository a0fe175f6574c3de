"""Hundreds of engines of two ranks that are killed, or a rank of which is: after a second nothing of them is left.

The processes are forked, so that they start at once; ``test_local_kills.py`` kills some that are not.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_core.executor.ranks.forked_ranks import ForkedEngine
from tests.processes import alive
from tests.ring import MODEL

pytestmark = pytest.mark.distributed

GONE = 1.0
"""Seconds in which nothing of an engine is left."""
LONGEST_START = 2.0
TENSORS, STAGES = "tensor_parallel_size", "pipeline_parallel_size"


def gone_after(pids: list[int]) -> float:
    """Seconds until none of these processes is there, not even as a zombie."""
    start = time.monotonic()
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() - start < 10 * GONE:
        time.sleep(0.005)
    return time.monotonic() - start


@pytest.fixture(autouse=True)
def _shared_memory_is_as_before() -> Iterator[None]:
    before = sorted(Path("/dev/shm").iterdir())
    yield
    assert sorted(Path("/dev/shm").iterdir()) == before


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sizes", [TENSORS, STAGES])
@pytest.mark.parametrize("victim", ["engine", "rank"])
def test_nothing_is_left_of_fifty_engines(victim: str, sizes: str) -> None:
    seconds = []
    for _ in range(50):
        engine = ForkedEngine(MODEL, sizes)
        ranks = engine.ranks()
        assert len(ranks) == 2
        assert all(map(alive, [engine.pid, *ranks]))
        time.sleep(random.uniform(0.0, 0.3))
        os.kill(engine.pid if victim == "engine" else random.choice(ranks), signal.SIGKILL)
        seconds.append(gone_after([engine.pid, *ranks]))
        engine.close()
    print(f"{victim}, {sizes}: the longest took {max(seconds):.3f} s, the median {sorted(seconds)[25]:.3f} s")
    assert max(seconds) < GONE


def children(pid: int) -> set[int]:
    """Of the process that forks engines and ranks."""
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sizes", [TENSORS, STAGES])
def test_nothing_is_left_of_engines_that_are_killed_as_they_start(sizes: str) -> None:
    seconds = []
    for _ in range(10):
        engine = ForkedEngine(MODEL, sizes)
        parent = int(Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()[1])
        time.sleep(random.uniform(0.0, LONGEST_START))
        os.kill(engine.pid, signal.SIGKILL)
        time.sleep(0.01)  # a rank that is asked for already may be forked still
        seconds.append(gone_after([engine.pid, *children(parent)]))
        assert not children(parent)
        engine.close()
    print(f"starting, {sizes}: the longest took {max(seconds):.3f} s")
    assert max(seconds) < GONE
