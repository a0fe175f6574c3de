"""A worker process: holds one engine and runs a round on each command.

Engines that cannot share a process (each needs its own threads and its own interpreter) are interleaved round by round
in this way. This module has both ends of the pipe, and needs only the standard library. A line is one JSON object:
``{"milestones": …}`` once the engine has generated its first token, then an answer for each ``Work``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.guard import end_with_this_program
from benchmarks.work import Milestone, Outcome, Work

_ROOT = Path(__file__).resolve().parents[1]
_START_TIMEOUT, _ROUND_TIMEOUT, _CLOSE_TIMEOUT = 400.0, 600.0, 15.0
_LOG_LINES = 8


class WorkerError(Exception):
    """A worker did not start or did not answer; the text says which, and shows the end of the worker's log."""


class Engine(ABC):
    """The interface of the engine in a worker."""

    milestones: Sequence[Milestone] = ()
    """Stages of the engine's start, if it reports them."""

    @abstractmethod
    def run(self, work: Work) -> Outcome:
        """Do ``work`` and time it, excluding preparation that does not need the prompts."""


def serve_rounds(load: type[Engine]) -> None:
    """The worker's end: construct the engine from the command line's JSON options, then run rounds until stdin ends.

    Output of the engine goes to stderr: the pipe carries only answers.
    """
    begun = Milestone("interpreter", time.monotonic())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = load(**json.loads(sys.argv[1]))
    milestones = [begun, *engine.milestones]
    engine.run(Work(batch=1, prompt=16, output=1, seed=-1))
    milestones.append(Milestone("first token", time.monotonic()))
    _tell(answers, {"milestones": [asdict(milestone) for milestone in milestones]})
    for line in sys.stdin:
        _tell(answers, asdict(engine.run(Work(**json.loads(line)))))
    os._exit(0)  # engines with their own processes and threads may take long to end


def _tell(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The command and options that start a worker."""

    name: str
    """The engine's name in tables."""
    interpreter: str
    """The Python that has the engine."""
    module: str
    """A module of ``benchmarks.workers``."""
    options: Mapping[str, Any]
    """Keyword arguments of its ``Engine``."""
    environment: Mapping[str, str]


class Worker:
    """The parent's end. A context manager: entering it starts the worker and waits for the first token."""

    def __init__(self, spec: WorkerSpec, logs: Path) -> None:
        """The worker's output goes to a file in ``logs``."""
        self.spec = spec
        self.milestones: list[Milestone] = []
        self._log = logs / f"{spec.name.replace(' ', '-')}.log"

    @property
    def start_seconds(self) -> float:
        """Seconds from the start of the process to the first token."""
        return self.milestones[-1].at - self._started

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of each stage of the start; the first stage is the interpreter's start."""
        ends = [self._started, *(milestone.at for milestone in self.milestones)]
        return {m.name: m.at - before for m, before in zip(self.milestones, ends, strict=False)}

    def __enter__(self) -> Self:
        spec = self.spec
        command = [spec.interpreter, "-m", f"benchmarks.workers.{spec.module}", json.dumps(dict(spec.options))]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_"))}
        environment |= {"PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"} | dict(spec.environment)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self._started = time.monotonic()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=_ROOT,
                start_new_session=True,
            )
        end_with_this_program(self._process)
        try:
            ready = self._answer(_START_TIMEOUT)
        except BaseException:
            self.close()
            raise
        self.milestones = [Milestone(**milestone) for milestone in ready["milestones"]]
        self.pause()
        return self

    def run(self, work: Work) -> Outcome:
        """Have the worker do ``work``. Raises ``WorkerError``."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the wait for the answer then raises the reason
            self._process.stdin.write(json.dumps(asdict(work)) + "\n")
            self._process.stdin.flush()
        outcome = Outcome(**self._answer(_ROUND_TIMEOUT))
        self.pause()
        return outcome

    def pause(self) -> None:
        """Suspend the worker until its next round, so that no thread of it runs while another engine is measured."""
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End the worker and all processes that it has started."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_TIMEOUT)
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with self._killed_after(timeout):
            line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise WorkerError(f"{self.spec.name} ended without an answer; the end of {self._log}:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @contextlib.contextmanager
    def _killed_after(self, timeout: float) -> Iterator[None]:
        timer = threading.Timer(timeout, self._signal, (signal.SIGKILL,))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
