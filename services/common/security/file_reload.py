"""Small files (certificates, keys, tokens) that are read again when they change, without a restart.

Each use of the value, at the start of a connection or call, checks for changes. An unusable file ends a starting
process. A running process logs it once, keeps the old value and tries the file again: its certificate may become valid
a second later, or the process may have been out of file descriptors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from services.common.config.errors import FatalError

log = structlog.get_logger(__name__)

T = TypeVar("T")

_Stamp = list[tuple[int, int, int]]

MAX_FILE_BYTES = 16 << 20
RETRY_INTERVAL = 1.0
"""Seconds before an unusable file that has not changed is read again."""


class UnusableFile(Exception):
    """A file cannot be used. The text names its flag, and never quotes its contents."""

    def __init__(self, flag: str, problem: str) -> None:
        super().__init__(f"{flag}: {problem}")


class ReloadedFile(Generic[T]):
    """A value parsed from one or more files. Thread-safe."""

    def __init__(
        self,
        files: Mapping[str, str],
        parse: Callable[[Mapping[str, bytes]], T],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``files``: paths keyed by flag. ``parse`` gets the contents keyed by flag, and may raise ``UnusableFile``.

        ``now``: the clock of retries, in seconds. Raises ``FatalError`` if the files cannot be used now.
        """
        self._files = {flag: Path(path) for flag, path in files.items()}
        self._parse = parse
        self._now = now
        self._unusable: _Stamp | None = None
        """The files' stamp when they were last read and could not be used."""
        self._retry_at = 0.0
        self._logged = ""
        """The problem that was logged last; empty while the files are usable."""
        self._lock = threading.Lock()
        self.version = 0
        """Incremented whenever the value is replaced."""
        try:
            self._stamp = self._stat()
            self._value = self._read()
        except UnusableFile as error:
            raise FatalError(str(error)) from None

    @property
    def value(self) -> T:
        """The value parsed from the present files, or from their last usable contents."""
        with self._lock:
            try:
                stamp = self._stat()
                if stamp == self._stamp or (stamp == self._unusable and self._now() < self._retry_at):
                    return self._value
                self._unusable, self._retry_at = stamp, self._now() + RETRY_INTERVAL
                self._value = self._read()
            except UnusableFile as error:
                if self._logged != str(error):
                    self._logged = str(error)
                    log.error("a changed file is not usable; its earlier content stays in use", reason=self._logged)
            else:
                self._stamp, self._unusable, self._logged = stamp, None, ""
                self.version += 1
                log.info("read again", files=[str(path) for path in self._files.values()])
            return self._value

    def _stat(self) -> _Stamp:
        """Modification time, size and inode of each file: differs when a file has changed."""
        stamp = []
        for flag, path in self._files.items():
            try:
                info = path.stat()
            except OSError as error:
                raise UnusableFile(flag, f"{path} cannot be read: {error.strerror}") from None
            stamp.append((info.st_mtime_ns, info.st_size, info.st_ino))
        return stamp

    def _read(self) -> T:
        contents = {}
        for flag, path in self._files.items():
            try:
                with path.open("rb") as file:
                    contents[flag] = file.read(MAX_FILE_BYTES + 1)
            except OSError as error:
                raise UnusableFile(flag, f"{path} cannot be read: {error.strerror}") from None
            if not contents[flag].strip():
                raise UnusableFile(flag, f"{path} is empty")
            if len(contents[flag]) > MAX_FILE_BYTES:
                raise UnusableFile(flag, f"{path} has more than {MAX_FILE_BYTES} bytes")
        return self._parse(contents)
