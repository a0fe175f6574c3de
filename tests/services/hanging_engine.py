"""``python -m tests.services.hanging_engine …``: an engine that hangs after a few steps, each life in its own way."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import engine_core.startup
import services.ring.liveness
from engine_core.engine import EngineCore
from engine_core.step import SequenceOutput
from services.cli.main import main

HANGS = "HANGING_ENGINE_HANGS"
"""Variable with the path of a file that lists in which ways, one per line: the first is the next life's."""
STEP, PROCESS = "step", "process"
AFTER_STEPS = 50
"""Steps with that file there."""
STEP_FLOOR = 1.0
"""Seconds that a step may take in any case."""


class HangingCore(EngineCore):
    """Its step hangs as native code does, which nothing can interrupt; or the whole process is stopped."""

    _steps = 0

    def step(self, starting: Callable[[list[str]], None] | None = None) -> list[SequenceOutput]:
        outputs = super().step(starting)
        file = Path(os.environ[HANGS])
        if file.exists():
            self._steps += 1
            if self._steps == AFTER_STEPS and (ways := file.read_text().splitlines()):
                file.write_text("\n".join(ways[1:]))
                if ways[0] == STEP:
                    threading.Event().wait()
                os.kill(os.getpid(), signal.SIGSTOP)
        return outputs


if __name__ == "__main__":
    engine_core.startup.EngineCore = HangingCore  # type: ignore[misc]
    services.ring.liveness.STEP_FLOOR = STEP_FLOOR
    services.ring.liveness.LARGEST_STEP_FACTOR = 0.0
    sys.exit(main())
