"""Ends processes whose starter has ended, however that ended: after SIGKILL nobody else would do it, and a process that
is stopped does not notice the end of its input.

One small process per program: it learns what to end over its standard input, whose end is that of the program. Where
``make`` runs the program, the end of that is a SIGTERM for it. This module imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_GRACE = 10.0
"""Seconds in which processes may end what they have started, before they are killed."""


def end_with_this_program(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Have ``process``, with its group if it leads one, ended when this program is gone."""
    _guard().watch(process.pid)


class _Guard:
    """The program's end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # -I and -S: what the guard needs is there without a look at the environment, and sooner.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *map(str, _make())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(b"%d\n" % pid)
            self._process.stdin.flush()


def _make() -> list[int]:
    """The pid of the ``make`` that runs this program, if one does: its shell outlives it, and would wait on."""
    pid = os.getppid() if "MAKELEVEL" in os.environ else 0
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            break
        if name in ("make", "gmake"):
            return [pid]
        pid = int(rest.split()[1])
    return []


@cache
def _guard() -> _Guard:
    return _Guard()


def main() -> None:
    """The guard: waits for the end of its input, then ends what still runs of what it was told of."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    program, makes = os.getppid(), [os.pidfd_open(int(pid)) for pid in sys.argv[1:]]
    watched: dict[int, int] = {}
    """A pidfd for each pid, which may be another process's by the time that it is asked for."""
    with os.fdopen(0, "rb", buffering=0) as told:  # unbuffered, for select
        while True:
            ready, _, _ = select.select([told.fileno(), *makes], [], [])
            if told.fileno() not in ready:
                makes = []
                if os.getppid() == program:
                    os.kill(program, signal.SIGTERM)
                continue
            if not (line := told.readline()):
                break
            for pid in [pid for pid, process in watched.items() if _has_ended(process)]:
                os.close(watched.pop(pid))
            with contextlib.suppress(ProcessLookupError):
                watched[int(line)] = os.pidfd_open(int(line))
    _end(watched.items())


def _end(watched: Iterable[tuple[int, int]]) -> None:
    left = [(pid, process) for pid, process in watched if not _has_ended(process)]
    targets = [-pid if _leads_group(pid) else pid for pid, _ in left]
    _signal(targets, signal.SIGINT)
    _signal(targets, signal.SIGCONT)
    end = time.monotonic() + _GRACE
    while time.monotonic() < end and not all(_has_ended(process) for _, process in left):
        time.sleep(0.05)
    _signal(targets, signal.SIGKILL)


def _has_ended(process: int) -> bool:
    return bool(select.select([process], [], [], 0)[0])


def _leads_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def _signal(targets: Iterable[int], number: signal.Signals) -> None:
    """As kill(2): a negative target is a group."""
    for target in targets:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target, number)


if __name__ == "__main__":
    main()
