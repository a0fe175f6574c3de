"""The project's own engine, offline: no service, no tokenizer."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.work import Milestone, Outcome, Work
from benchmarks.worker import Engine, serve_rounds


class RinglineEngine(Engine):
    """``engine_core.llm.LLM``, started as ``ringline engine`` starts it."""

    def __init__(self, model: str, **options: Any) -> None:
        """``options``: the engine's options."""
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported, below
        from engine_core.llm import LLM
        from engine_core.progress import Stage, StartupProgress

        class Clock:
            """Records the stages of the start, and when each is finished."""

            def __init__(self) -> None:
                self.milestones = [Milestone("imports", time.monotonic())]
                self.stages: list[Stage] = []

            def stage_started(self, stage: Stage) -> None:
                return

            def stage_advanced(self, stage: Stage, done: int, total: int) -> None:
                return

            def stage_finished(self, stage: Stage) -> None:
                self.milestones.append(Milestone(stage.name, time.monotonic()))
                self.stages.append(stage)

        clock = Clock()
        self.llm = LLM(model, progress=StartupProgress(clock), **options)
        self.milestones = clock.milestones
        self.stages = clock.stages

    def run(self, work: Work) -> Outcome:
        from engine_core.llm import SamplingParams

        schema = work.json_schema or None
        params = SamplingParams(temperature=0.0, max_tokens=work.output, ignore_eos=True, json_schema=schema)
        prompts = work.prompts()
        begun = time.perf_counter()
        results = self.llm.generate(prompts, params)
        seconds = time.perf_counter() - begun
        if any(len(result.choices[0].token_ids) != work.output for result in results):
            raise RuntimeError("a sequence did not get the tokens it asked for")
        return Outcome(seconds, sum(result.cached_tokens for result in results))


if __name__ == "__main__":
    serve_rounds(RinglineEngine)
