"""Processes of ranks that start at once: a process that has imported everything forks them.

What they run, and how they are connected, is what ``LocalRank`` does; only their imports are not made again each time.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, recv_fds, send_fds, socket, socketpair

from engine_core.distributed.ranks import Rank
from engine_core.executor.rank_connection import RankConnections
from engine_core.executor.rank_process import RankProcess

_ROOM = "room for the title of a rank, which is longer than this process's own" + 60 * "."


@cache
def _forking_process() -> tuple[socket, subprocess.Popen[bytes]]:
    """It ends with this process."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    root = str(Path(__file__).parents[3])
    run = f"import sys; sys.path.insert(0, {root!r}); from {__name__} import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # with more, libraries begin threads, which a fork loses
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", run, str(theirs.fileno()), _ROOM],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment,
        )
    return ours, process


class ForkedRank(RankProcess):
    """In the place of a ``LocalRank``."""

    def __init__(self, rank: Rank, title: str) -> None:
        self.rank = rank
        ours, theirs = zip(socketpair(), socketpair(), strict=True)
        reading, self._life = os.pipe()
        forking, _ = _forking_process()
        send_fds(forking, [title.encode()], [*(each.fileno() for each in theirs), reading])
        for each in theirs:
            each.close()
        os.close(reading)
        self.pid = int(forking.recv(64))
        self.ended: int | None = os.pidfd_open(self.pid)
        self.connections = RankConnections(*(Connection(each.detach()) for each in ours))

    def ending(self, seconds: float) -> str | None:
        return f"(pid {self.pid}) ended" if self.wait(seconds) else None

    def kill(self) -> None:
        if self.ended is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.ended, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        return self.ended is None or bool(select.select([self.ended], [], [], seconds)[0])

    def close(self) -> None:
        super().close()
        if self.ended is not None:
            os.close(self.ended)
            os.close(self._life)
            self.ended = None


def main() -> None:
    """Fork a rank for each message, until the other end is closed."""
    import engine_core.executor.identity
    import engine_core.executor.join
    import engine_core.executor.rank_loop
    import engine_core.executor.worker  # noqa: F401
    from engine_core.executor import worker_main

    line = socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system lets nothing remain of those that have ended
    while True:
        title, descriptors, _, _ = recv_fds(line, 1024, 3)
        if not title:
            return
        pid = os.fork()
        if pid == 0:
            try:
                line.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sys.argv[1:] = [*map(str, descriptors), title.decode()]
                worker_main.main()
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(str(pid).encode())
