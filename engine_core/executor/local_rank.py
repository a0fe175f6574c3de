"""The process of a rank on this host."""

from __future__ import annotations

from pathlib import Path

from engine_core.distributed.ranks import Rank
from engine_core.executor.child_process import ChildProcess
from engine_core.executor.rank_connection import RankConnections
from engine_core.executor.rank_process import RankProcess


class LocalRank(RankProcess):
    """A child process."""

    module = "engine_core.executor.worker_main"
    """Its ``main`` is what the process runs."""

    def __init__(self, rank: Rank, title: str) -> None:
        """Start it. What it writes goes to this process's standard error, with its name before each line."""
        self.rank = rank
        self._process = ChildProcess(str(self), self.module, 2, title)
        self.connections = RankConnections(*self._process.connections)
        self.ended = self._process.ended

    def ending(self, seconds: float) -> str | None:
        return self._process.ending(seconds)

    def wants_to_run(self) -> bool:
        """Whether a thread of it runs, waits for a processor, or for a disk (proc_pid_stat(5))."""
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
