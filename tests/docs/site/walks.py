"""Walks through pages: the blocks of docs/start/ and docs/tutorials/, run one after the other as a reader would.

A block that is one command of a server is started, and stays. Other commands run in bash, and Python blocks in Python;
one whose first line is a comment with a file's name is saved under it. Whatever fails is a problem. Each page has a
folder of its own, and ports of its own in place of those that are printed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.docs.documents import DOCUMENTS, ROOT, Block, blocks_of, is_walk, lines_of_shell

SERVERS = ("serve", "engine", "processor", "detokenizer", "gateway")
PATIENCE = 180.0
"""Seconds of one block."""
_PORT = re.compile(r"\b(8000|50\d\d\d)\b")
_FILE = re.compile(r"# ([\w-]+\.\w+)\n")
_SERVING, _READY = re.compile(r"\bserving\b"), re.compile(r"^ready in", re.MULTILINE)


class WalkError(Exception):
    """A block did not do what a reader would expect."""


class Walk:
    """One page that is being walked."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports: dict[str, str] = {}
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients' / 'python'}",
            "RINGLINE_ADDRESS": f"127.0.0.1:{self._port('50051')}",
        }

    def step(self, block: Block) -> str:
        """Do what a block says; returns what it printed."""
        code = _PORT.sub(lambda match: self._port(match[1]), block.code)
        if block.language == "python":
            named = _FILE.match(code)
            if named is not None:
                (self._folder / named[1]).write_text(code)
                return f"saved {named[1]}"
            return self._run([sys.executable, "-c", code])
        lines = lines_of_shell(block)
        words = lines[0].split()
        if len(lines) == 1 and words[0] == "ringline" and words[1] in SERVERS:
            self._start(_PORT.sub(lambda match: self._port(match[1]), lines[0]), serves=words[1] == "serve")
            return "started"
        return self._run(["bash", "-e", "-c", code])

    def _port(self, printed: str) -> str:
        """A free port in the place of a printed one; that of its metrics, 10,000 above, is one, too."""
        while printed not in self._ports:
            port = random.randrange(20_000, 32_000)
            with socket.socket() as taken, contextlib.suppress(OSError):
                taken.bind(("", port))
                self._ports[printed] = str(port)
        return self._ports[printed]

    def _run(self, command: list[str]) -> str:
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            told, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            told, _ = process.communicate()
            raise WalkError(f"is not done after {PATIENCE:.0f} s: {told[-2000:]}") from None
        if process.returncode:
            raise WalkError(f"exited with {process.returncode}: {told[-2000:]}")
        return told

    def _start(self, line: str, *, serves: bool) -> None:
        if serves:
            metrics = self._port("metrics")
            line += f" --port {self._port('50051')} --http-port {self._port('8000')} --metrics-port {metrics}"
        log = self._stack.enter_context(tempfile.TemporaryFile("w+", dir=self._folder))  # noqa: SIM115
        environment = {**self._environment, "RINGLINE_LOG_FORMAT": "console"}
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=self._folder, env=environment, stdout=log, stderr=log
        )
        self._stack.callback(ended, process)
        self._await(process, log, line)

    def _await(self, process: subprocess.Popen[bytes], log: IO[str], line: str) -> None:
        # A tier that nobody has linked to yet is ready later: the next blocks start its peers.
        end = time.monotonic() + (PATIENCE if line.split()[1] in ("serve", "engine") else 3.0)
        while time.monotonic() < end:
            told = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
            if (_READY if line.split()[1] == "serve" else _SERVING).search(told):
                return
            if process.poll() is not None:
                raise WalkError(f"{line} exited with {process.returncode}: {told[-2000:]}")
            time.sleep(0.1)
        if line.split()[1] in ("serve", "engine"):
            raise WalkError(f"{line} does not serve after {PATIENCE:.0f} s")


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a server as Ctrl-C would, twice if it must be."""
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                continue
    process.kill()
    process.wait()


@contextmanager
def walk() -> Iterator[Walk]:
    with tempfile.TemporaryDirectory(prefix="walk-") as folder, ExitStack() as stack:
        (Path(folder) / "checkpoints").symlink_to(ROOT / "checkpoints")  # as in a clone
        yield Walk(Path(folder), stack)


def walked(document: Path, *, shows: bool = False) -> tuple[int, list[str]]:
    """Run a page's blocks; returns how many, and what went wrong with the one that ended the walk."""
    done = 0
    with walk() as one:
        for block in blocks_of(document):
            if block.reason is not None or block.language not in ("bash", "python"):
                continue
            try:
                told = one.step(block)
            except WalkError as error:
                return done, [f"{block}: {error}"]
            done += 1
            if shows:
                print(f"--- {block}\n{block.code}>>>\n{told}", flush=True)
    return done, []


def walks() -> list[str]:
    """Walk through all such pages; returns what went wrong."""
    wrong = []
    for document in filter(is_walk, DOCUMENTS):
        begun = time.monotonic()
        done, problems = walked(document)
        wrong += problems
        seconds = time.monotonic() - begun
        print(f"walked through {document.relative_to(ROOT)}: {done} blocks in {seconds:.0f} s", flush=True)
    return wrong


def main(names: Sequence[str]) -> int:
    """Walk through the pages of these names, and show what they print; or through all."""
    wrong = [problem for name in names for problem in walked(ROOT / name, shows=True)[1]] if names else walks()
    for problem in wrong:
        print(f"PROBLEM {problem}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
