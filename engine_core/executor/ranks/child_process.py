"""A Python child process, for a rank or for the process that starts ranks elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from typing import IO, Any
from weakref import WeakSet

import engine_core

_TAIL_LINES = 20
_LINE_BYTES = 1 << 16
_OUTPUT_SECONDS = 0.2
"""Time to read the last output of a process that has ended."""


_living: WeakSet[ChildProcess] = WeakSet()


def _let_go() -> None:
    """Run in a forked copy of this process, which must not keep children alive after their parent."""
    for child in _living:
        child.let_go()


os.register_at_fork(after_in_child=_let_go)


class ChildProcess:
    """Ends with this process at the latest. Its output is forwarded."""

    def __init__(self, name: str, module: str, connections: int, *more: str, environment: Sequence[str] = ()) -> None:
        """Run ``main`` of ``module``. Its arguments are descriptors: its ends of ``connections``, and of a pipe that
        closes when this process ends; then ``more``.

        ``environment``: NAME=VALUE, for the child alone. ``name`` precedes each line that it writes.
        """
        pairs = [socketpair() for _ in range(connections)]
        reading, self._life = os.pipe()
        handed = [*(theirs.fileno() for _, theirs in pairs), reading]
        # Not ``-m``: the child must import this very package, wherever it was imported from.
        root = str(Path(engine_core.__file__).parent.parent)
        python = ["env", *environment, sys.executable] if environment else [sys.executable]
        code = f"import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"
        try:
            self._process = subprocess.Popen(
                [*python, "-P", "-c", code, *map(str, handed), *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=handed,
            )
        except BaseException:
            os.close(self._life)
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            os.close(reading)
            for _, theirs in pairs:
                theirs.close()
        self.pid = self._process.pid
        self.connections: list[Connection[Any, Any]] = [Connection(ours.detach()) for ours, _ in pairs]
        self.ended: int | None = os.pidfd_open(self.pid)
        """A descriptor that becomes readable when the process has ended; None once closed."""
        assert self._process.stdout is not None
        self._output = ForwardedOutput(name, self._process.stdout)
        _living.add(self)

    def ending(self, seconds: float) -> str | None:
        """How it ended, and its last output, as the end of a sentence; None if it does not end within ``seconds``."""
        if not self.wait(seconds):
            return None
        code = self._process.returncode
        how = f"was killed by {_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return f"(pid {self.pid}) {how}{self._output.last_words()}"

    def kill(self) -> None:
        """Idempotent; from any thread."""
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it has ended (and left no zombie)."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def let_go(self) -> None:
        """Close the descriptors whose other ends the child watches. Idempotent."""
        for connection in self.connections:
            connection.close()
        if self.ended is not None:
            os.close(self.ended)
            os.close(self._life)
            self.ended = None

    def close(self) -> None:
        """Close all descriptors, which ends it. Idempotent."""
        self.let_go()
        self._output.close()


def _name(number: int) -> str:
    """Name of a signal; real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ForwardedOutput:
    """Forwards a process's output to this one's standard error, and remembers the last lines."""

    def __init__(self, name: str, pipe: IO[bytes]) -> None:
        """``name`` precedes each line."""
        self._name = name
        self._pipe = pipe
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._thread = threading.Thread(target=self._forward, name=f"output of {name}", daemon=True)
        self._thread.start()

    def last_words(self) -> str:
        """The last lines of a process that has ended, as the end of a sentence; empty if there are none."""
        self._thread.join(_OUTPUT_SECONDS)
        return f"; its last lines: {' | '.join(self._lines)}" if self._lines else ""

    def close(self) -> None:
        """Idempotent. Keeps reading if a descendant of the process still writes."""
        self._thread.join(_OUTPUT_SECONDS)
        if not self._thread.is_alive():
            self._pipe.close()

    def _forward(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # over a network; treated like the end of a pipe
            while raw := self._pipe.readline(_LINE_BYTES):
                line = raw.decode(errors="replace").rstrip()
                self._lines.append(line)
                print(f"{self._name}: {line}", file=sys.stderr, flush=True)
