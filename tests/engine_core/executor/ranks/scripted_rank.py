"""Ranks without a model: processes that do what a test says, for an executor that takes them for real ones. They start
in a quarter of a second, as they need no torch.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine_core.config import EngineConfig, ParallelConfig
from engine_core.distributed.ranks import Rank, ranks_on_one_host
from engine_core.executor.ranks import local_main, loop
from engine_core.executor.ranks.connection import RankReport, RankStart
from engine_core.executor.ranks.local import LocalRank
from engine_core.progress import StartupProgress
from engine_core.step import EncoderPlan, StepPlan, StepResult

Do = Callable[[], None]


class ScriptedRank(LocalRank):
    module = "tests.engine_core.executor.ranks.scripted_rank"


class ScriptedWorker:
    """Has the methods of a ``Worker`` that an executor calls after the start, and some that a test calls."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.takes_one_step = rank.pp_size == 1
        self._seen: list[Any] = []
        self._encoder: EncoderPlan | None = None
        self._in_step: tuple[Any, ...] | None = None

    def echo(self, *arguments: Any) -> tuple[Any, ...]:
        return self.rank.number, *arguments

    def seen(self) -> list[Any]:
        return self._seen

    def encoder(self) -> EncoderPlan | None:
        """What the last plan does with pictures."""
        return self._encoder

    def do(self, number: int, what: str, argument: Any) -> None:
        """On one rank: raise an error, exit with a code, write a line and exit, stop, or sleep for seconds."""
        if number != self.rank.number:
            return
        if what == "raise":
            raise argument
        if what == "exit":
            print("the last words", file=sys.stderr)
            os._exit(argument)
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if what == "sleep":
            time.sleep(argument)

    def in_step(self, *what: Any) -> None:
        """``do`` it in the next step."""
        self._in_step = what

    def count(self, report: Callable[[int, int], None]) -> int:
        for done in range(4):
            report(done, 4)
        report(4, 4)
        return 4

    def warm_up(self) -> None:
        """From now on a garbage collection takes a second, in which no other thread runs."""
        asleep = ctypes.PyDLL(None).usleep
        gc.callbacks.append(lambda phase, _: asleep(1_000_000) if phase == "start" else None)

    def launch(self, plan: StepPlan) -> Any:
        what, self._in_step = self._in_step, None
        if what is not None:
            self.do(*what)
        self._seen.append(plan.step_id)
        self._encoder = plan.encoder
        token_ids = np.array([plan.step_id, self.rank.number])
        return SimpleNamespace(result=lambda: StepResult(plan.step_id, [token_ids.tolist()]), sampled=token_ids)

    def follow(self, plan: StepPlan) -> None:
        self.launch(plan)

    def commit(self, step_id: int, sampled: Any) -> None:
        self._seen.append((step_id, sampled.tolist()))

    def close(self) -> None: ...


def _make_worker(start: RankStart, report: Callable[[Any], None]) -> Any:
    report(RankReport("here", os.getpid(), {"build": "1"}))
    return ScriptedWorker(start.rank)


def main() -> None:
    loop._make_worker = _make_worker
    local_main.main()


@contextmanager
def scripted(tp: int = 2, pp: int = 1, serving: bool = True) -> Iterator[Any]:
    """Such ranks, started as far as the first call, or as far as steps; closed at the end."""
    from engine_core.executor.ranks.launcher import RankLauncher  # only here: a rank needs no torch
    from engine_core.executor.ranks.workers import RankWorkers

    class ScriptedLauncher(RankLauncher):
        def launch(self) -> list[ScriptedRank]:
            return [ScriptedRank(rank) for rank in ranks_on_one_host(self.config.parallel)]

    parallel = ParallelConfig(tensor_parallel_size=tp, pipeline_parallel_size=pp)
    workers = RankWorkers(ScriptedLauncher(EngineConfig(parallel=parallel), "scripted"))
    try:
        workers.start(None, StartupProgress())  # type: ignore[arg-type]
        if serving:
            workers.start_steps(pp, 0.0)
        yield workers
    finally:
        workers.close()
