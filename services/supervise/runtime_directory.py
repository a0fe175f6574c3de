"""Where running stacks are found: one private directory per ``ringline serve``, with its sockets and its state.

A directory is alive for as long as somebody holds the lock in it. The kernel lets go of the lock of a process that
dies, in whatever way, so a dead one's directory is known for what it is and removed by whoever looks next.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import structlog

from services.config.addresses import MAX_SOCKET_PATH_BYTES
from services.config.errors import FatalError

log = structlog.get_logger(__name__)

_LOCK, _STATE = "lock", "state.json"
_LONGEST_SOCKET = "serve-xxxxxxxx/detokenizer.sock"
"""As ``tempfile`` names directories."""
_ELSEWHERE = "set XDG_RUNTIME_DIR to a directory of yours"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One service of a stack."""

    pid: int
    address: str
    """Where it can be dialled."""
    metrics: str | None
    """Where Prometheus finds it; None if nowhere."""


@dataclass(frozen=True, slots=True)
class StackState:
    """What a running ``ringline serve`` tells about itself."""

    pid: int
    model: str
    started: float
    """Seconds since 1970."""
    address: str
    """Where this machine reaches the processor, whether it runs at this moment or not."""
    services: Mapping[str, ProcessState]
    """engine, detokenizer and processor, as far as they run."""


class RuntimeDirectory:
    """The directory of one stack."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def socket(self, service: str) -> str:
        """Path of the unix socket of ``service``."""
        return str(self.path / f"{service}.sock")

    def write(self, state: StackState) -> None:
        """Replace the state, so that no reader sees half of it. A stack goes on without: only its status suffers."""
        draft = self.path / (_STATE + ".new")
        try:
            draft.write_text(json.dumps(asdict(state), indent=2))
            draft.replace(self.path / _STATE)
        except OSError as error:
            log.warning("state not written", directory=str(self.path), reason=error.strerror)


@contextmanager
def runtime_directory() -> Iterator[RuntimeDirectory]:
    """A new directory for this process, removed afterwards; the dead ones beside it are removed first."""
    running_stacks()
    path, lock = _new_locked()
    try:
        yield RuntimeDirectory(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        lock.close()


def _new_locked() -> tuple[Path, IO[str]]:
    base = _base()
    while True:
        try:
            path = Path(tempfile.mkdtemp(prefix="serve-", dir=base))
        except OSError as error:
            raise FatalError(f"no directory for sockets in {base}: {error.strerror}; {_ELSEWHERE}") from None
        lock = _lock(path, "a")
        if lock is None:
            continue  # somebody who looks for dead directories came between the two lines, and removes this one
        if os.fstat(lock.fileno()).st_nlink:
            return path, lock
        lock.close()  # or has removed it


def running_stacks() -> list[StackState]:
    """The stacks that this user runs on this machine; directories of dead ones are removed."""
    found: list[StackState] = []
    if not os.path.lexists(_place()):
        return found  # nobody ever started one
    for path in sorted(_base().glob("serve-*")):
        lock = _lock(path, "r+")
        if lock is not None:  # nobody holds it
            shutil.rmtree(path, ignore_errors=True)
            lock.close()
            continue
        try:
            found.append(_read(path / _STATE))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is only just starting, or ends at this moment
    return found


def _read(path: Path) -> StackState:
    state = json.loads(path.read_text())
    services = {name: ProcessState(**process) for name, process in state.pop("services").items()}
    return StackState(services=services, **state)


def _lock(path: Path, mode: str) -> IO[str] | None:
    """The lock of ``path``; None if somebody else has it, or there is none and ``mode`` does not make one."""
    try:
        file = (path / _LOCK).open(mode)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _place() -> Path:
    """``$XDG_RUNTIME_DIR/ringline``, or a directory of this user in the system's one for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "ringline" if runtime else Path(tempfile.gettempdir()) / f"ringline-{os.getuid()}"


def _base() -> Path:
    """That place, which is made if it is not there; raises ``FatalError`` unless it will do."""
    base = _place()
    if len(os.fsencode(base / _LONGEST_SOCKET)) > MAX_SOCKET_PATH_BYTES:
        raise FatalError(
            f"{base} is too long a name for sockets, whose paths have {MAX_SOCKET_PATH_BYTES} bytes: {_ELSEWHERE}"
        )
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        info = base.lstat()
    except OSError as error:
        raise FatalError(f"no directory for sockets at {base}: {error.strerror}; {_ELSEWHERE}") from None
    if info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise FatalError(f"{base} is not private to this user: remove it, or {_ELSEWHERE}")
    return base
