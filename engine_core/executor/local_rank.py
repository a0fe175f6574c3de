"""The process of a rank on this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from typing import IO

import engine_core
from engine_core.distributed.ranks import Rank
from engine_core.executor.rank_connection import RankConnections
from engine_core.executor.rank_process import RankProcess

_TAIL_LINES = 20
_LINE_BYTES = 1 << 16
_OUTPUT_SECONDS = 0.2
"""For the last output of a process that has ended to be read."""


class LocalRank(RankProcess):
    """A child process."""

    module = "engine_core.executor.worker_main"
    """Its ``main`` is what the process runs."""

    def __init__(self, rank: Rank, title: str) -> None:
        """Start it. What it writes goes to this process's standard error, with its name before each line."""
        self.rank = rank
        ours, theirs = zip(socketpair(), socketpair(), strict=True)
        reading, self._life = os.pipe()  # the process ends when our end is closed, however that comes
        handed = [*(each.fileno() for each in theirs), reading]
        # Not ``-m``: it is to be this very package, wherever it was imported from.
        root = str(Path(engine_core.__file__).parent.parent)
        run = f"import sys; sys.path.insert(0, {root!r}); from {self.module} import main; main()"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", run, *map(str, handed), title],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=handed,
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(reading)
            for each in theirs:
                each.close()
        self.connections = RankConnections(*(Connection(each.detach()) for each in ours))
        self._tasks = Path(f"/proc/{self._process.pid}/task")
        self.ended: int | None = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        self._output = _Output(str(self), self._process.stdout)

    def ending(self, seconds: float) -> str | None:
        if not self.wait(seconds):
            return None
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        lines = self._output.last_lines()
        return f"(pid {self._process.pid}) {how}" + (f"; its last lines: {' | '.join(lines)}" if lines else "")

    def wants_to_run(self) -> bool:
        """Whether a thread of it runs, waits for a processor, or for a disk (proc_pid_stat(5))."""
        try:
            states = [each.read_text().rpartition(") ")[2][0] for each in self._tasks.glob("*/stat")]
        except OSError:  # a thread has just ended
            return True
        return "R" in states or "D" in states

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        super().close()
        if self.ended is not None:
            os.close(self.ended)
            os.close(self._life)
            self.ended = None
        self._output.close()


class _Output:
    """Forwards what a process writes, and remembers the end of it."""

    def __init__(self, name: str, pipe: IO[bytes]) -> None:
        self._name = name
        self._pipe = pipe
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._thread = threading.Thread(target=self._forward, name=f"output of {name}", daemon=True)
        self._thread.start()

    def last_lines(self) -> list[str]:
        """Of a process that has ended."""
        self._thread.join(_OUTPUT_SECONDS)
        return list(self._lines)

    def close(self) -> None:
        """Idempotent. A process that the rank started, and that still writes, is read on."""
        self._thread.join(_OUTPUT_SECONDS)
        if not self._thread.is_alive():
            self._pipe.close()

    def _forward(self) -> None:
        while raw := self._pipe.readline(_LINE_BYTES):
            line = raw.decode(errors="replace").rstrip()
            self._lines.append(line)
            print(f"{self._name}: {line}", file=sys.stderr, flush=True)
