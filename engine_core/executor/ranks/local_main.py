"""What the process of a rank of ``LocalLauncher`` runs.

The arguments are descriptors that it inherits: of its two connections, and of the pipe that ends it with the engine.
Further ones only make room for the title of the process.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from multiprocessing.connection import Connection


def end_with_engine(pipe: int) -> None:
    """Let the kernel kill this process when the engine, which alone holds the other end of ``pipe``, is gone.

    A signal, so that it ends also while it is stopped, or a library holds the interpreter's lock; SIGKILL instead of
    SIGIO, because a stopped process gets no other. Not PR_SET_PDEATHSIG, which goes by the *thread* that started it.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    gone = select.poll()
    gone.register(pipe, select.POLLIN)  # of the ranks of Ray it is a socket, and can be written
    if gone.poll(0):  # it was gone before
        os._exit(1)


def main() -> None:
    """Run the rank until its end."""
    calls, signs, pipe = map(int, sys.argv[1:4])
    end_with_engine(pipe)
    for number in (signal.SIGINT, signal.SIGTERM):  # often sent to a whole group: they are for the engine, which drains
        signal.signal(number, signal.SIG_IGN)
    from engine_core.executor.ranks.connection import RankConnections
    from engine_core.executor.ranks.loop import run_rank

    run_rank(RankConnections(Connection(calls), Connection(signs)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing that a library does at exit may keep the engine waiting
