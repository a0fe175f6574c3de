"""Profiles the next steps while the engine serves."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from ringline.engine.v1 import engine_pb2
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile

MAX_STEPS = 1000
DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS = 30_000, 600_000
"""When the timeout expires, a profile ends with the steps recorded so far."""
_TABLE_ROWS = 30


class StepProfile:
    """A ``StepRecorder`` that profiles a number of steps, in all threads of the process."""

    def __init__(self, steps: int) -> None:
        self._remaining = steps
        self._seconds: list[float] = []
        self._tokens: list[int] = []
        # Not torch.profiler.profile: on start it imports torch's compiler, which takes seconds.
        every_thread = _ExperimentalConfig(profile_all_threads=True)
        self._profiler: Any = profile(use_kineto=True, experimental_config=every_thread)
        self.result: Future[engine_pb2.ProfileResponse] = Future()

    def start(self) -> None:
        """Call it between two steps, in the step loop's thread."""
        self._profiler.__enter__()

    def step(self, seconds: float, tokens: int) -> bool:
        """Record a step; returns whether more are wanted."""
        self._seconds.append(seconds)
        self._tokens.append(tokens)
        self._remaining -= 1
        if self._remaining == 0:
            self.finish()
        return self._remaining > 0

    def finish(self) -> None:
        """End with the steps recorded so far. Idempotent."""
        if self.result.done():
            return
        self._profiler.__exit__(None, None, None)
        table = self._profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=_TABLE_ROWS)
        self.result.set_result(
            engine_pb2.ProfileResponse(
                steps=len(self._seconds),
                step_ms=[1000 * seconds for seconds in self._seconds],
                step_tokens=self._tokens,
                table=table,
            )
        )
