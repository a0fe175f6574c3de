"""Runtime directories: one private directory per ``ringline serve``, with its sockets, its state and a lock.

A stack holds the lock while it lives. The kernel releases it however the process dies, so the next process that lists
the directories recognizes those of dead stacks and removes them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import structlog

from services.common.config.addresses import MAX_SOCKET_PATH_BYTES
from services.common.config.errors import FatalError

log = structlog.get_logger(__name__)

_LOCK, _STATE = "lock", "state.json"
_LONGEST_SOCKET = "serve-xxxxxxxx/detokenizer-0.sock"
"""The longest path below the base directory; ``tempfile`` names directories like this."""
_HINT = "set XDG_RUNTIME_DIR to a directory of yours"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A running service of a stack."""

    pid: int
    address: str
    """The address to dial; a gateway's is a URL, unless it is one of several, which have unix sockets of their own."""
    metrics: str | None
    """URL for Prometheus; None without metrics."""


@dataclass(frozen=True, slots=True)
class StackState:
    """The state that a running ``ringline serve`` writes to its directory."""

    pid: int
    model: str
    started: float
    """Seconds since 1970."""
    address: str
    """The processors' address from this machine, even while none runs."""
    services: Mapping[str, ProcessState]
    """The running processes, keyed by name: engine, or engine-0 and so on if there are several; likewise detokenizer,
    processor and gateway."""
    http_url: str | None = None
    """The gateways' URL from this machine, even while none runs; None for a stack without one."""
    names: Sequence[str] = ("engine", "detokenizer", "processor")
    """The names of all its processes, running or not."""


class RuntimeDirectory:
    """The directory of one stack."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def socket(self, name: str) -> str:
        """Path of the unix socket of the process with that name."""
        return str(self.path / f"{name}.sock")

    def write(self, state: StackState) -> None:
        """Replace the state atomically. A failure is logged and ignored: only ``ringline status`` needs the file."""
        draft = self.path / (_STATE + ".new")
        try:
            draft.write_text(json.dumps(asdict(state), indent=2))
            draft.replace(self.path / _STATE)
        except OSError as error:
            log.warning("state not written", directory=str(self.path), reason=error.strerror)


@contextmanager
def runtime_directory() -> Iterator[RuntimeDirectory]:
    """A new directory for this process, removed afterwards; dead stacks' directories are removed first."""
    running_stacks()
    path, lock = _new_locked()
    try:
        yield RuntimeDirectory(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        lock.close()


def _new_locked() -> tuple[Path, IO[str]]:
    base = _base_directory()
    while True:
        try:
            path = Path(tempfile.mkdtemp(prefix="serve-", dir=base))
        except OSError as error:
            raise FatalError(f"cannot create a directory for sockets in {base}: {error.strerror}; {_HINT}") from None
        lock = _lock(path, "a")
        if lock is None:
            continue  # another process mistook it for a dead stack's directory, and is removing it
        if os.fstat(lock.fileno()).st_nlink:
            return path, lock
        lock.close()  # another process has removed it already


def running_stacks() -> list[StackState]:
    """The stacks that this user runs on this machine; directories of dead ones are removed."""
    found: list[StackState] = []
    if not os.path.lexists(_base_path()):
        return found  # this user has never started a stack
    for path in sorted(_base_directory().glob("serve-*")):
        lock = _lock(path, "r+")
        if lock is not None:  # its stack is dead
            shutil.rmtree(path, ignore_errors=True)
            lock.close()
            continue
        try:
            state = json.loads((path / _STATE).read_text())
            services = {name: ProcessState(**process) for name, process in state.pop("services").items()}
            if "names" in state:  # not in an earlier release's
                state["names"] = tuple(state["names"])
            found.append(StackState(services=services, **state))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # the stack is starting or ending
    return found


def _lock(path: Path, mode: str) -> IO[str] | None:
    """The lock of ``path``; None if another process holds it, or if it is missing and ``mode`` does not create it."""
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


def _base_path() -> Path:
    """``$XDG_RUNTIME_DIR/ringline``, or a directory of this user in the system's temporary directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "ringline" if runtime else Path(tempfile.gettempdir()) / f"ringline-{os.getuid()}"


def _base_directory() -> Path:
    """The base directory, created if missing; raises ``FatalError`` if its path is too long or not private."""
    base = _base_path()
    if len(os.fsencode(base / _LONGEST_SOCKET)) > MAX_SOCKET_PATH_BYTES:
        raise FatalError(f"{base} is too long: paths of sockets have at most {MAX_SOCKET_PATH_BYTES} bytes; {_HINT}")
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        info = base.lstat()
    except OSError as error:
        raise FatalError(f"cannot create a directory for sockets at {base}: {error.strerror}; {_HINT}") from None
    if info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise FatalError(f"{base} is not private to this user: remove it, or {_HINT}")
    return base
