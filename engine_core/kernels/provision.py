"""Finds or builds the library of native kernels: in its package, or in a user's cache.

Ordinary users may not write into site-packages, or may not even read what root built there. The cache is
``~/.cache/ringline``, unless another folder is named. As its files are loaded and run, neither the folder nor a file in
it is trusted that another user owns or may write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engine_core.kernels.build import LIBRARY, BuildError, build, source_digest

PACKAGE = Path(__file__).parent
USER_CACHE = Path("~/.cache/ringline")
MAX_CACHED = 4
"""Libraries that a cache keeps, the latest: each release has its own."""
_PATIENCE = 900.0
"""Seconds to wait for another process that is building in the same folder; many times a build's duration."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for the library, and the library's name in it."""

    directory: Path
    name: str
    is_cache: bool

    @property
    def path(self) -> Path:
        return self.directory / self.name

    def holds(self, digest: str) -> bool:
        """Whether it has a trusted library built from sources of ``digest``.

        The file is read, not loaded: a process that has loaded a library never loads its replacement.
        """
        try:
            if self.is_cache:
                self._require_own()
            return self.path.is_file() and digest.encode() in self.path.read_bytes()  # a pipe would never end
        except OSError:  # it is not there, may not be read, or is not trusted
            return False

    def prepare(self) -> None:
        """Make it ready for writing. Raises ``OSError``."""
        if self.is_cache:
            self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.mkdir(mode=0o700, exist_ok=True)
            self._require_own()
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "it is not writable")

    def _require_own(self) -> None:
        _require_own(self.directory.stat())
        with suppress(FileNotFoundError):
            _require_own(self.path.lstat())


def places(cache: str | None, package: Path, digest: str) -> list[Place]:
    """Places for the library built from sources of ``digest``, preferred first."""
    found = [Place(package, LIBRARY, is_cache=False)]
    with suppress(RuntimeError):  # this user has no home
        directory = USER_CACHE.expanduser() if not cache else Path(cache).expanduser().absolute()
        built_for = [platform.machine(), "".join(platform.libc_ver()), digest]  # unlike machines may share a home
        found.append(Place(directory, f"{Path(LIBRARY).stem}-{'-'.join(built_for)}.so", is_cache=True))
    return found


def find_library(cache: str | None = None, package: Path = PACKAGE) -> Path | None:
    """The library, if there is one built from the present sources. Raises ``BuildError`` if they cannot be read."""
    digest = _source_digest()
    return next((place.path for place in places(cache, package, digest) if place.holds(digest)), None)


def provide_library(
    cache: str | None = None, package: Path = PACKAGE, on_progress: Callable[[int, int], None] | None = None
) -> Path:
    """The library; if missing, built in the first writable place. Raises ``BuildError``.

    Of several engines that start at once, one compiles, and the others wait. ``on_progress`` is as in ``build``.
    """
    if found := find_library(cache, package):
        return found
    digest, problems = _source_digest(), []
    for place in places(cache, package, digest):
        try:
            place.prepare()
            with _one_builder(place.directory):
                if not place.holds(digest):
                    _build_at(place, digest, on_progress)
            return place.path
        except OSError as error:
            problems.append(f"{place.directory}: {error.strerror}")
    raise BuildError(f"no directory can hold them ({'; '.join(problems)})")


def _source_digest() -> str:
    try:
        return source_digest()
    except OSError as error:
        raise BuildError(f"their sources cannot be read: {error.filename}: {error.strerror}") from error


def _build_at(place: Place, digest: str, on_progress: Callable[[int, int], None] | None) -> None:
    """Build in a folder of its own, so that an engine killed meanwhile leaves no partial library at ``place``, but
    object files that the next one takes.
    """
    # The lock holds on this machine only, but others may share the folder, so the names have the machine's.
    draft = place.directory / f"new-{platform.node()}-{LIBRARY}"
    name = f"objects-{platform.node()}-"
    objects = place.directory / f"{name}{digest}"
    for other in place.directory.iterdir():
        if other.name.startswith(name) and other != objects:  # of an earlier release
            shutil.rmtree(other, ignore_errors=True)
    objects.mkdir(mode=0o700, exist_ok=True)
    _require_own(objects.lstat())
    try:
        shutil.copy(build(objects, objects, on_progress), draft)
        if place.is_cache:
            draft.chmod(0o600)
        draft.replace(place.path)
    except Exception:  # what fails may be the compiler's, and be another one the next time
        shutil.rmtree(objects, ignore_errors=True)
        raise
    finally:
        draft.unlink(missing_ok=True)
    shutil.rmtree(objects, ignore_errors=True)
    if place.is_cache:
        _forget_old_ones(place.directory)


def _forget_old_ones(cache: Path) -> None:
    with suppress(OSError):
        libraries = sorted(cache.glob(f"{Path(LIBRARY).stem}-*.so"), key=lambda path: path.stat().st_mtime)
        for old in libraries[:-MAX_CACHED]:  # engines keep what they have loaded
            old.unlink()


@contextmanager
def _one_builder(directory: Path) -> Iterator[None]:
    """Hold a lock on the directory, released at the latest when the process ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Raises ``TimeoutError`` if another process holds it for too long."""
    given_up = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= given_up:
                problem = f"another process has been building there for {_PATIENCE / 60:.0f} minutes"
                raise TimeoutError(errno.ETIMEDOUT, problem) from None
            time.sleep(0.05)


def _require_own(status: os.stat_result) -> None:
    """Raise ``PermissionError`` for what another user owns or may write."""
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user, so nothing in it is trusted")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "other users can write to it, so nothing in it is trusted")
