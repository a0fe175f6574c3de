"""What small files say (certificates, keys, tokens), read again when they change, without a restart.

Files are looked at when somebody asks, which is when a connection or a call begins. What cannot be used ends a process
that starts; of one that runs, the log says it once, and what was known before goes on until it can be: a certificate
may only hold in a second, or no file could be opened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from services.config.errors import FatalError

log = structlog.get_logger(__name__)

T = TypeVar("T")

_Stamp = list[tuple[int, int, int]]

MAX_FILE_BYTES = 16 << 20
RETRY_SECONDS = 1.0
"""Before a file that could not be used, and has not changed since, is read once more."""


class UnusableFile(Exception):
    """A file says what cannot be used; the text names its flag, and nothing of its contents."""

    def __init__(self, flag: str, problem: str) -> None:
        super().__init__(f"{flag}: {problem}")


class ReloadedFile(Generic[T]):
    """A value made of some files. Safe to use from many threads."""

    def __init__(
        self,
        files: Mapping[str, str],
        parse: Callable[[Mapping[str, bytes]], T],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``files`` are paths by flag; ``parse`` gets their contents by flag, and raises ``UnusableFile``.

        ``now`` is the clock of retries, in seconds. Raises ``FatalError`` for what cannot be used now.
        """
        self._files = {flag: Path(path) for flag, path in files.items()}
        self._parse = parse
        self._now = now
        self._unusable: _Stamp | None = None
        """Of files that were read and could not be used."""
        self._retry_at = 0.0
        self._lock = threading.Lock()
        self.version = 0
        """Raised whenever the value was replaced."""
        try:
            self._stamp = self._look()
            self._value = self._read()
        except UnusableFile as error:
            raise FatalError(str(error)) from None

    @property
    def value(self) -> T:
        """As the files say now, or said when they could be used last."""
        with self._lock:
            try:
                stamp = self._look()
                if stamp == self._stamp or (stamp == self._unusable and self._now() < self._retry_at):
                    return self._value
                self._unusable, self._retry_at = stamp, self._now() + RETRY_SECONDS
                self._value = self._read()
            except UnusableFile as error:
                if self._told != str(error):
                    self._told = str(error)
                    log.error("a changed file is not usable; what it said before goes on", reason=self._told)
            else:
                self._stamp, self._unusable, self._told = stamp, None, ""
                self.version += 1
                log.info("read again", files=[str(path) for path in self._files.values()])
            return self._value

    _told = ""

    def _look(self) -> _Stamp:
        """What changes when a file does."""
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
