"""One process that decodes pictures, as the threads of the pool use it (``text_core.pictures.child``)."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from text_core.pictures.base import PictureError, PictureProcessor, ViewPlan
from text_core.pictures.formats import CONVERT
from text_core.pictures.frames import ANSWER, MAX_ERROR_BYTES, MIME, REQUEST, Answer, Request
from text_core.pictures.limits import PictureLimits
from text_core.pictures.prepared import CHANNELS, PreparedItem, PreparedPicture, PreparedView

START_SECONDS = 60.0
"""Time for a process to start, on a machine that has much else to do."""
WALL_FACTOR = 6.0
"""A picture may take so many times its time of the CPU, because the process shares the machine."""
_EXIT_SECONDS = 5.0
_PIPE_BYTES = 1 << 20
_MAX_MIME = 256
_ENVIRONMENT = {"LANG": "C.UTF-8"}
"""Not empty, because setproctitle finds the title by it."""
_BOOT = "import sys; sys.path[:0] = sys.argv[2:]; from text_core.pictures.child import run; run(sys.argv[1])"


class ProcessFailed(Exception):
    """The process cannot do its work, whatever the picture."""


class TooSlow(Exception):
    """The machine has too much else to do: nothing in a picture makes its process wait."""


class _Ended(Exception):
    """The process has ended, or takes too long."""


def _command(limits: PictureLimits) -> list[str]:
    """Isolated from this process's environment, folders and site: it finds the three packages that it needs."""
    found = (importlib.util.find_spec(name) for name in ("text_core", "PIL", "setproctitle"))
    paths = {str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin is not None}
    return [sys.executable, "-I", "-S", "-c", _BOOT, json.dumps(asdict(limits)), *sorted(paths)]


class PictureProcess:
    """A process; its methods block, and are called by one thread at a time, but for ``kill``."""

    def __init__(self, limits: PictureLimits) -> None:
        """Start it. Raises ``ProcessFailed``."""
        self._limits = limits
        self._facts: bytes | None = None
        """Those that it has."""
        self.pictures = 0
        """How many it has been given."""
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                _command(limits),
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=_ENVIRONMENT,
                cwd="/",
            )
        except OSError as error:
            raise ProcessFailed(f"it could not be started: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe_end in (self._requests, self._answers):
            os.set_blocking(pipe_end, False)
            _enlarge(pipe_end)
        try:
            kind, _, _ = ANSWER.unpack(self._read(ANSWER.size, time.monotonic() + START_SECONDS))
        except _Ended:
            raise ProcessFailed(f"it did not start: {self._end()}") from None
        if kind != Answer.READY:
            raise ProcessFailed(f"it began with answer {kind}: {self._end()}")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once; may be called by any thread."""
        self._process.kill()

    def close(self) -> None:
        """End it, and wait until it is gone."""
        self._end()

    def prepare(self, facts: bytes, processor: PictureProcessor, data: bytes, mime: str) -> PreparedPicture:
        """Decode a picture. Raises ``PictureError`` and ``TooSlow``, after which the process may have ended;
        ``ProcessFailed``.
        """
        self.pictures += 1
        most = WALL_FACTOR * self._limits.max_seconds
        deadline = time.monotonic() + most
        try:
            return self._exchange(facts, processor, data, mime, deadline)
        except _Ended:
            is_late = time.monotonic() >= deadline
            code = self._end()
            if is_late and code != -signal.SIGPROF:
                raise TooSlow(f"it could not be decoded within {most:g} s, because this machine is busy") from None
            raise PictureError(self._reason(code)) from None

    def _exchange(
        self, facts: bytes, processor: PictureProcessor, data: bytes, mime: str, deadline: float
    ) -> PreparedPicture:
        if facts is not self._facts:
            self._write(REQUEST.pack(Request.FACTS, len(facts)), deadline)
            self._write(facts, deadline)
            self._facts = facts
        declared = mime.encode("ascii", "replace")[:_MAX_MIME]
        head = MIME.pack(len(declared)) + declared
        self._write(REQUEST.pack(Request.PICTURE, len(head) + len(data)) + head, deadline)
        self._write(data, deadline)
        kind, first, second = ANSWER.unpack(self._read(ANSWER.size, deadline))
        if kind == Answer.PICTURE and 0 < first * second <= self._limits.max_pixels:
            try:
                plan = processor.plan(first, second)
            except PictureError as error:
                raise ProcessFailed(f"it sent a picture that is none: {error}") from None
            items = tuple(
                PreparedItem.of(item, [self._view(view, deadline) for view in item.views]) for item in plan.items
            )
            return PreparedPicture(plan, items)
        if kind in (Answer.ERROR, Answer.FAILED) and first <= MAX_ERROR_BYTES:
            text = self._read(first, deadline).decode("utf-8", "replace")
            raise PictureError(text) if kind == Answer.ERROR else ProcessFailed(text)
        raise ProcessFailed(f"it answered {kind}, {first}, {second}")

    def _view(self, plan: ViewPlan, deadline: float) -> PreparedView:
        width, height = plan.size
        return PreparedView(width, height, self._read(width * height * CHANNELS, deadline))

    def _reason(self, code: int) -> str:
        """Why a picture ended the process, for its sender."""
        if code == -signal.SIGPROF:
            return f"it could not be decoded within {self._limits.max_seconds:g} s of computing; make it smaller"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"it could not be decoded: it ended the process that read it ({how}); check the file, or {CONVERT}"

    # Pipes

    def _write(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            _wait(self._requests, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._requests, rest) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise _Ended from None

    def _read(self, size: int, deadline: float) -> bytes:
        pieces = []
        while size:
            _wait(self._answers, select.POLLIN, deadline)
            try:
                piece = os.read(self._answers, min(size, _PIPE_BYTES))
            except BlockingIOError:
                continue
            if not piece:
                raise _Ended
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _end(self) -> int:
        """Its exit code; ends it if it has not ended by itself."""
        process = self._process
        try:
            code = process.wait(0.0 if process.poll() is not None else _grace(self._answers))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait(_EXIT_SECONDS)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return code


def _grace(answers: int) -> float:
    """Seconds to wait for the exit code: a process whose pipe is closed is about to end."""
    poll = select.poll()
    poll.register(answers, select.POLLIN)
    return _EXIT_SECONDS if any(event & select.POLLHUP for _, event in poll.poll(0)) else 0.0


def _wait(file: int, events: int, deadline: float) -> None:
    """Until a pipe is ready. Raises ``_Ended`` at the deadline."""
    poll = select.poll()
    poll.register(file, events)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(1000 * left):
        raise _Ended


def _enlarge(pipe: int) -> None:
    """A larger buffer takes fewer turns; a system may allow none."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        return
