"""Server processes: starts them, waits until they listen, and ends them with all their children."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.guard import end_with_this_program

_POLL = 0.05
_END_TIMEOUT = 10.0
_LOG_LINES = 8


def end_children_when_terminated() -> None:
    """Raise an exception on SIGTERM, so that context managers end all started processes."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


class ServerError(Exception):
    """A server did not start; the text shows the end of its log."""


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command`` in a new session while the body runs; ``environment`` is added to this process's."""
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=kept | dict(environment or {}), start_new_session=True
        )
    end_with_this_program(process)
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_TIMEOUT)
    with contextlib.suppress(ProcessLookupError):  # kill children that outlived the process
        os.killpg(process.pid, signal.SIGKILL)


def wait_for_port(process: subprocess.Popen[bytes], port: int, timeout: float, log: Path) -> None:
    """Wait until a process listens on ``port`` of 127.0.0.1. Raises ``ServerError``."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(_POLL)
    raise failure(log)


def failure(log: Path) -> ServerError:
    """The error for a server that does not serve, with the end of its log."""
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    return ServerError(f"a server did not come up; the end of {log}:\n{tail}")


def free_port() -> int:
    """A TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
