"""The entry point of a rank's process under ``LocalLauncher``.

Arguments are inherited descriptors: its two connections, and the pipe that ends it with the engine.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
from multiprocessing.connection import Connection


def end_with_engine(pipe: int) -> None:
    """Have the kernel kill this process when the engine, which alone holds the other end of ``pipe``, is gone.

    By a signal, so that it ends even if stopped, or if a library holds the GIL; SIGKILL instead of SIGIO, because a
    stopped process receives no other. Not by PR_SET_PDEATHSIG, which depends on the parent *thread*.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    gone = select.poll()
    gone.register(pipe, select.POLLIN)  # not POLLOUT: for Ray's ranks it is a socket, always writable
    if gone.poll(0):  # the engine was gone already
        os._exit(1)


def main() -> None:
    """Run the rank until its end."""
    calls, signs, pipe = map(int, sys.argv[1:])
    end_with_engine(pipe)
    for number in (signal.SIGINT, signal.SIGTERM):  # often sent to the whole group, but meant for the engine to drain
        signal.signal(number, signal.SIG_IGN)
    from engine_core.executor.ranks.connection import RankConnections
    from engine_core.executor.ranks.loop import run_rank

    run_rank(RankConnections(Connection(calls), Connection(signs)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a library's exit handlers must not keep the engine waiting
