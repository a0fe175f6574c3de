"""``python -m tests.services.poisoned_engine …``: an engine that cannot compute what has ``POISON`` in its prompt."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import engine_core.startup
from engine_core.engine import EngineCore
from engine_core.request import Request
from engine_core.step import SequenceOutput
from services.cli import main

POISON = 7
"""A token id."""


class PoisonedCore(EngineCore):
    """Its first step on a poisonous request raises, after the services were told what it begins."""

    _poisonous = False

    def add(self, request: Request) -> None:
        super().add(request)
        self._poisonous |= POISON in request.prompt_token_ids

    def step(self, starting: Callable[[list[str]], None] | None = None) -> list[SequenceOutput]:
        outputs = super().step(starting)
        if self._poisonous:
            time.sleep(1.0)  # so that they are told before this process ends
            raise RuntimeError("poison")
        return outputs


if __name__ == "__main__":
    engine_core.startup.EngineCore = PoisonedCore  # type: ignore[misc]
    sys.exit(main())
