"""What goes wrong with a rank of an engine: it is killed, it is stopped, a connection of it is cut."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.chaos.fleet import Fleet
from tests.processes import Process

OPTIONS = {
    "engine-0": ("--tensor-parallel-size", "2", "--num-threads", "1"),
    "engine-1": ("--pipeline-parallel-size", "2", "--num-threads", "1"),
}
"""Of a fleet's engines of several ranks; the others have one."""
_RESTART_INTERVAL = 0.1
_PIDFD_GETFD = 438
"""The number of the system call on all kinds of processors."""


def ranks_of(process: Process) -> list[int]:
    """The processes of an engine's ranks; none while it does not run."""
    found: list[int] = []
    with suppress(OSError):
        for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return sorted(found)


def kill_one(process: Process) -> None:
    for pid in _one(process):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def stop_one(process: Process, seconds: float) -> None:
    for pid in _one(process):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            os.kill(pid, signal.SIGCONT)


def cut_one(process: Process) -> None:
    """Shut a connection of a rank: to the engine, or to another rank."""
    for pid in _one(process):
        with suppress(OSError):
            sockets = [
                int(each.name)
                for each in Path(f"/proc/{pid}/fd").iterdir()
                if str(each.readlink()).startswith("socket:")
            ]
            if sockets:
                _shut(pid, random.choice(sockets))


def _one(process: Process) -> list[int]:
    return random.sample(found, 1) if (found := ranks_of(process)) else []


def _shut(pid: int, descriptor: int) -> None:
    """Shut a socket of another process, for both sides."""
    library = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        own = library.syscall(_PIDFD_GETFD, process, descriptor, 0)
        if own < 0:
            raise OSError(ctypes.get_errno(), "a descriptor of another process cannot be had")
        with socket.socket(fileno=own) as line:
            line.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(process)


@asynccontextmanager
async def restarted(fleet: Fleet) -> AsyncIterator[set[int]]:
    """Start engines of several ranks again when they have ended, as a supervisor does; collects their ranks."""
    seen: set[int] = set()
    supervised = [fleet.processes[name] for name in fleet.ranks]

    async def restart() -> None:
        while True:
            for process in supervised:
                process.start()
                seen.update(ranks_of(process))
            await asyncio.sleep(_RESTART_INTERVAL)

    for process in supervised:
        process.is_supervised = True
    task = asyncio.create_task(restart())
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        for process in supervised:
            process.start()
            process.is_supervised = False
            await process.wait_serving()
