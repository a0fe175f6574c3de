"""What the suites found, kept in ``.verify/COMMIT/SUITE.json`` beside each suite's output."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from tests.verify.depends import Sources
from tests.verify.suites import ENVIRONMENT, Suite

_MOST_OUTPUT = 16 << 20
"""Bytes of a suite's output that are read: its last."""


class BusyError(Exception):
    """Another run writes the same logs."""


@dataclass(frozen=True)
class Result:
    suite: str
    inputs: str
    """Digest of its command, the packages that are installed, and the files that it depends on."""
    commit: str
    passed: bool
    seconds: float
    figure: str


class Results:
    """Of a checkout: what it has found so far, at any commit."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self._kept = checkout / ".verify"
        self.commit = self._git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").decode().strip()
        self.lock: tuple[int, ...] = ()
        """The file descriptor of the lock, while it is held: a suite that outlives this process holds it, too."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all others from writing here while the body runs. Raises ``BusyError`` if another does."""
        self._kept.mkdir(exist_ok=True)
        with (self._kept / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go of at the end, however that comes
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip()
                raise BusyError(f"process {holder} verifies this checkout: wait until it ends, or end it") from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            self.lock = (lock.fileno(),)
            try:
                yield
            finally:
                self.lock = ()

    def log(self, suite: Suite) -> Path:
        """Where a suite's output goes."""
        path = self._kept / self.commit / f"{suite.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def output(self, suite: Suite) -> str:
        """What a suite has written, also if it was ended within a character or wrote what is none."""
        with self.log(suite).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _MOST_OUTPUT))
            return log.read().decode("utf-8", errors="replace")

    def passed(self, suite: Suite) -> Result | None:
        """A result of the files as they are, if the suite has passed with them."""
        inputs = self.digest(suite)
        found = self._results(suite.name).values()
        return next((result for result in found if result.passed and result.inputs == inputs), None)

    def _results(self, suite: str) -> dict[Path, Result]:
        """What is known of a suite, at any commit; what cannot be read is as good as none."""
        found = {}
        for path in self._kept.glob(f"*/{suite}.json"):
            with suppress(ValueError, TypeError):
                found[path] = Result(**json.loads(path.read_bytes()))
        return found

    def keep(self, result: Result) -> None:
        """In the place of what was found with the same inputs."""
        for path, known in self._results(result.suite).items():
            if known.inputs == result.inputs:
                path.unlink()
        path = self._kept / self.commit / f"{result.suite}.json"
        path.with_suffix(".new").write_text(json.dumps(asdict(result), indent=2) + "\n")
        path.with_suffix(".new").replace(path)

    def are_still(self, inputs: str, suite: Suite) -> bool:
        """Whether a suite depends on what it did."""
        try:
            return self.digest(suite) == inputs
        except (OSError, ValueError):  # a file was removed meanwhile
            return False

    def digest(self, suite: Suite) -> str:
        """Of what is run and with which packages, and of all files that a suite depends on, committed or not."""
        digest = hashlib.sha256(repr((suite.arguments, ENVIRONMENT, *_installed())).encode())
        for name in sorted(Sources(self.checkout).of(suite)):
            content = (self.checkout / name).read_bytes()
            digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
        return digest.hexdigest()

    def _git(self, *arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=self.checkout, capture_output=True, check=True).stdout


@cache
def _installed() -> tuple[str, ...]:
    """The machine, Python and its packages."""
    packages = sorted(f"{each.metadata['Name']} {each.version}" for each in distributions())
    return (platform.machine(), sys.version, *packages)
