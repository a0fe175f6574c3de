"""Ranks on this host: a child process for each (like vLLM's ``MultiprocExecutor``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from engine_core.config import EngineConfig
from engine_core.distributed.ranks import Rank, ranks_on_one_host
from engine_core.errors import ConfigError
from engine_core.executor.ranks.child_process import ChildProcess
from engine_core.executor.ranks.connection import RankConnections
from engine_core.executor.ranks.launcher import RankLauncher
from engine_core.executor.ranks.process import RankProcess
from engine_core.platforms.host_memory import usable_cpus
from engine_core.platforms.selector import is_for_cpu


class LocalLauncher(RankLauncher):
    """Starts ``local_main`` for each rank."""

    def launch(self) -> Sequence[RankProcess]:
        require_room(self.config)
        started: list[LocalRank] = []
        try:
            for rank in ranks_on_one_host(self.config.parallel):
                started.append(LocalRank(rank))  # noqa: PERF401  # one that fails leaves the others
        except BaseException:
            for each in started:
                each.kill()
                each.wait(1.0)
                each.close()
            raise
        return started


class LocalRank(RankProcess):
    """A rank in a child process."""

    module = "engine_core.executor.ranks.local_main"
    """The process runs its ``main``."""

    def __init__(self, rank: Rank) -> None:
        """Start the process. Its output goes to this process's standard error, prefixed with its name."""
        self.rank = rank
        self._process = ChildProcess(str(self), self.module, 2)
        self.connections = RankConnections(*self._process.connections)
        self.ended = self._process.ended

    def ending(self, seconds: float) -> str | None:
        return self._process.ending(seconds)

    def wants_to_run(self) -> bool:
        """Whether one of its threads runs, or waits for a processor or a disk (proc_pid_stat(5))."""
        threads = Path(f"/proc/{self._process.pid}/task")
        try:
            states = [each.read_text().rpartition(") ")[2][0] for each in threads.glob("*/stat")]
        except OSError:  # a thread has just ended
            return True
        return "R" in states or "D" in states

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        return self._process.wait(seconds)

    def close(self) -> None:
        self._process.close()
        self.ended = None


def require_room(config: EngineConfig) -> None:
    """Raise ``ConfigError`` for more ranks than processors, or GPUs."""
    parallel = config.parallel
    # The error names the option that was raised.
    flag = "tensor_parallel_size" if parallel.tensor_parallel_size > 1 else "pipeline_parallel_size"
    ranks = parallel.world_size * parallel.data_parallel_size
    named = f"{ranks} ranks are tensor_parallel_size × pipeline_parallel_size"
    if parallel.data_parallel_size > 1:
        flag, named = "data_parallel_size", f"{named} × data_parallel_size"
    size = getattr(parallel, flag)
    if not is_for_cpu(config.device):
        gpus = torch.cuda.device_count()
        if 0 < gpus < ranks:  # without any GPU, a worker reports that the device is missing
            accepted = f"at most one rank for each of {gpus} GPUs; {named}"
            raise ConfigError(flag, size, accepted)
    elif config.device.num_threads is None and ranks > usable_cpus():
        accepted = (
            f"at most one rank for each of {usable_cpus()} usable processors, or --num-threads 1, with which ranks may "
            f"share them; {named}"
        )
        raise ConfigError(flag, size, accepted)
