"""``python -m tests.services.poisoned_engine …``: an engine that cannot compute what has ``POISON`` in its prompt."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import engine_core.startup
from engine_core.engine import EngineCore
from engine_core.request import Request
from engine_core.step import SequenceOutput
from services.cli.main import main

POISON = 7
"""A token id."""
MAY_FAIL = "POISONED_ENGINE_MAY_FAIL"
"""Variable with the path of a file that is there once the services have heard what begins."""
MOST_SECONDS = 120.0
"""Until it fails in any case: a test that does not let it is over by then."""


class PoisonedCore(EngineCore):
    """Its first step on a poisonous request raises, after the services were told what it begins."""

    _poisonous = False

    def add(self, request: Request) -> None:
        super().add(request)
        self._poisonous |= POISON in request.prompt_token_ids

    def step(self, starting: Callable[[list[str]], None] | None = None) -> list[SequenceOutput]:
        outputs = super().step(starting)
        if self._poisonous:
            end = time.monotonic() + MOST_SECONDS
            while not Path(os.environ[MAY_FAIL]).exists() and time.monotonic() < end:
                time.sleep(0.01)  # of another process there is nothing to wait for but the file
            raise RuntimeError("poison")
        return outputs


if __name__ == "__main__":
    engine_core.startup.EngineCore = PoisonedCore  # type: ignore[misc]
    sys.exit(main())
