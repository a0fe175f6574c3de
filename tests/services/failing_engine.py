"""``python -m tests.services.failing_engine …``: an engine that hangs, or cannot compute what has ``POISON`` in it.

A step of it waits forever as native code does, which nothing can interrupt; or the whole process is stopped; or its
first step on a poisonous request raises, after the services were told what it begins.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import engine_core.startup
import services.ring.liveness
from engine_core.engine import EngineCore
from engine_core.request import Request
from engine_core.step import SequenceOutput
from services.cli.main import main

HANGS = "FAILING_ENGINE_HANGS"
"""Variable with the path of a file that lists in which ways it hangs, one per line: the first is the next life's."""
STEP, PROCESS = "step", "process"
AFTER_STEPS = 50
"""Steps with that file there."""
STEP_FLOOR = 1.0
"""Seconds that a step may take in any case, where one hangs."""

POISON = 7
"""A token id."""
MAY_FAIL = "FAILING_ENGINE_MAY_FAIL"
"""Variable with the path of a file that is there once the services have heard what begins."""
MOST_SECONDS = 120.0
"""Until it fails in any case: a test that does not let it is over by then."""


class FailingCore(EngineCore):
    _steps = 0
    _poisonous = False

    def add(self, request: Request) -> None:
        super().add(request)
        self._poisonous |= MAY_FAIL in os.environ and POISON in request.prompt_token_ids

    def step(self, starting: Callable[[list[str]], None] | None = None) -> list[SequenceOutput]:
        outputs = super().step(starting)
        if HANGS in os.environ:
            self._hang(Path(os.environ[HANGS]))
        if self._poisonous:
            end = time.monotonic() + MOST_SECONDS
            while not Path(os.environ[MAY_FAIL]).exists() and time.monotonic() < end:
                time.sleep(0.01)  # of another process there is nothing to wait for but the file
            raise RuntimeError("poison")
        return outputs

    def _hang(self, file: Path) -> None:
        self._steps += file.exists()
        if self._steps == AFTER_STEPS and (ways := file.read_text().splitlines()):
            file.write_text("\n".join(ways[1:]))
            if ways[0] == STEP:
                threading.Event().wait()
            os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    engine_core.startup.EngineCore = FailingCore  # type: ignore[misc]
    if HANGS in os.environ:
        services.ring.liveness.STEP_FLOOR = STEP_FLOOR
        services.ring.liveness.LARGEST_STEP_FACTOR = 0.0
    sys.exit(main())
