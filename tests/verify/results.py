"""What the suites found, kept in ``.verify/COMMIT/SUITE.json`` beside each suite's output."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.verify.depends import Sources
from tests.verify.suites import Suite


class BusyError(Exception):
    """Another run writes the same logs."""


@dataclass(frozen=True)
class Result:
    suite: str
    inputs: str
    """Digest of the files that it depends on."""
    commit: str
    passed: bool
    seconds: float
    figure: str


class Results:
    """Of a checkout: what it has found so far, at any commit."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self._kept = checkout / ".verify"
        self.commit = self._git("rev-parse", "--short=12", "HEAD").decode().strip()

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
            yield

    def log(self, suite: Suite) -> Path:
        """Where a suite's output goes."""
        path = self._kept / self.commit / f"{suite.name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def output(self, suite: Suite) -> str:
        """What a suite has written, also if it was ended within a character or wrote what is none."""
        return self.log(suite).read_text("utf-8", errors="replace")

    def passed(self, suite: Suite) -> Result | None:
        """A result of the files as they are, if the suite has passed with them."""
        inputs = self.digest(suite)
        for path in self._kept.glob(f"*/{suite.name}.json"):
            result = Result(**json.loads(path.read_text()))
            if result.passed and result.inputs == inputs:
                return result
        return None

    def keep(self, result: Result) -> None:
        path = self._kept / self.commit / f"{result.suite}.json"
        path.with_suffix(".new").write_text(json.dumps(asdict(result), indent=2) + "\n")
        path.with_suffix(".new").replace(path)

    def digest(self, suite: Suite) -> str:
        """Of the names and the contents of all files that a suite depends on, committed or not."""
        digest = hashlib.sha256()
        for name in sorted(Sources(self.checkout).of(suite)):
            content = (self.checkout / name).read_bytes()
            digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
        return digest.hexdigest()

    def _git(self, *arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=self.checkout, capture_output=True, check=True).stdout
